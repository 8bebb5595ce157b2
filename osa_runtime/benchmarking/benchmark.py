"""One benchmark from start to end: load, agree on the answers, time in rotation, then memory and profile."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from osa_runtime.benchmarking.agreement import disagreement, is_half
from osa_runtime.benchmarking.cases import build_cases
from osa_runtime.benchmarking.configurations import Configuration
from osa_runtime.benchmarking.contention import ContentionWatch, contention_doubt
from osa_runtime.benchmarking.feeds import REAL_DATA
from osa_runtime.benchmarking.figures import ratio, summarise
from osa_runtime.benchmarking.machine import describe_machine
from osa_runtime.benchmarking.memory import MemoryGrowth, measure_memory, memory_can_be_measured
from osa_runtime.benchmarking.opening import describe_session, eager_class, timed_opening
from osa_runtime.benchmarking.profiling import profile_artifact
from osa_runtime.benchmarking.request import Request
from osa_runtime.benchmarking.result import ARTIFACT, EAGER, BenchmarkResult, Measurement
from osa_runtime.benchmarking.rotation import Call, rotate
from osa_runtime.errors import InputError, RunError
from osa_runtime.runtime.session import load

if TYPE_CHECKING:
    from osa_runtime.benchmarking.eager import EagerModel

Array = NDArray[Any]
# Called with what is being done, how many of its steps are done, and how many there are.
Listener = Callable[[str, int, int], None]
NO_MEMORY = "memory was not measured: only Linux tells the peak of a process"


class Benchmark:
    """The contenders, opened, and the inputs of every configuration, which all give finite outputs."""

    def __init__(self, request: Request) -> None:
        self._request = request
        open_artifact = partial(load, request.artifact, request.device, threads=request.threads)
        self._session, seconds = timed_opening(open_artifact)
        self._load_seconds = {ARTIFACT: seconds}
        if request.trace is not None and self._session.format != "onnx":
            raise InputError(
                f"trace={request.trace} needs an ONNX model, {request.artifact} is {self._session.format}."
            )
        self._cases, self._fed, self._notes = build_cases(self._session, request)
        self._outputs = [self._first_run(*case) for case in self._cases]
        self._eager = self._open_eager(request) if request.against is not None else None

    def _first_run(self, configuration: Configuration, feeds: Mapping[str, Array]) -> dict[str, Array]:
        try:
            return self._session.run(feeds, check_finite=True)
        except RunError as error:
            advice = "" if self._request.read_data else f" It was fed {self._fed}; {REAL_DATA}."
            raise RunError(f"With {configuration} there is nothing to measure: {error}{advice}") from error

    def _open_eager(self, request: Request) -> EagerModel:
        assert request.against is not None
        half = is_half(self._outputs[0])
        start = partial(eager_class(), request.against, request.device, request.threads, half)
        model, self._load_seconds[EAGER] = timed_opening(start)
        return model

    @functools.cached_property
    def disagreement(self) -> str | None:
        """Where the checkpoint answers otherwise than the artifact; None when it agrees in every configuration."""
        if self._eager is None:
            return None
        for (configuration, feeds), ours in zip(self._cases, self._outputs, strict=True):
            theirs = self._eager.run(feeds, self._order)
            dtype = self._session.manifest.dtype if self._session.manifest else None
            problem = disagreement(ours, theirs, self._session.format, self._eager.depth, dtype)
            if problem:
                return (
                    f"{self._request.artifact} and {self._request.against} give different answers with "
                    f"{configuration} ({problem}). The speed of a wrong answer is not reported.{self._origin()}"
                )
        return None

    def _origin(self) -> str:
        recorded = self._session.manifest.source.get("sha256") if self._session.manifest else None
        if self._eager is None or recorded in (None, self._eager.weights_hash):
            return " Verify the artifact."
        return " The artifact was exported from other weights: its manifest has another hash."

    @property
    def _order(self) -> list[str]:
        return [spec.name for spec in self._session.inputs]

    def measure(self, listener: Listener = lambda *_: None) -> BenchmarkResult:
        """Time every configuration. Raises where the contenders disagree."""
        if self.disagreement:
            raise RunError(self.disagreement)
        request, machine, notes = self._request, describe_machine(), self._notes.copy()
        measurements = tuple(self._measure(*case, listener) for case in self._cases)
        memory = self._memory(listener) if request.memory and memory_can_be_measured() else {}
        if request.memory and not memory:
            notes.append(NO_MEMORY)
        profile = None
        if request.trace is not None:
            configuration, feeds = self._cases[-1]
            listener(f"profile, {configuration}", 0, 1)
            profile = profile_artifact(request, feeds, request.trace)
            notes.append(f"the profile is of {configuration}, in runs of its own, which the tracing slows down")
        return BenchmarkResult(
            artifact=describe_session(self._session, request.artifact),
            against={"path": str(request.against), "sha256": self._eager.weights_hash} if self._eager else None,
            machine=machine,
            settings=request.settings(),
            fed=self._fed,
            load_seconds=self._load_seconds,
            measurements=measurements,
            memory=memory,
            profile=profile,
            notes=tuple(notes),
        )

    def close(self) -> None:
        self._session.close()

    def _measure(self, configuration: Configuration, feeds: Mapping[str, Array], listener: Listener) -> Measurement:
        contenders: dict[str, Call] = {ARTIFACT: partial(self._session.run, feeds)}
        if self._eager is not None:
            contenders[EAGER] = partial(self._eager.run, feeds, self._order)
        total, rounds = self._request.schedule.blocks, iter(range(1, self._request.schedule.blocks + 1))
        listener(str(configuration), 0, total)
        watch = ContentionWatch()
        blocks = rotate(
            contenders,
            self._request.schedule,
            after_round=lambda: listener(str(configuration), next(rounds), total),
        )
        busy = watch.busy_cores()
        doubt = contention_doubt(busy, self._request.threads)
        return Measurement(
            configuration,
            {name: array.shape for name, array in feeds.items()},
            {name: summarise(found, configuration.batch, doubt) for name, found in blocks.items()},
            busy,
            ratio(blocks[ARTIFACT], blocks[EAGER]) if self._eager is not None else None,
        )

    def _memory(self, listener: Listener) -> dict[str, MemoryGrowth]:
        request = self._request
        paths = {ARTIFACT: request.artifact} | ({EAGER: request.against} if request.against else {})
        shared = {
            "format": self._session.format,
            "device": request.device,
            "threads": request.threads,
            "half": is_half(self._outputs[0]),
            "order": self._order,
        }
        grown = {}
        for done, (name, path) in enumerate(paths.items()):
            listener(f"memory, {name}", done, len(paths))
            job = {"contender": name, "path": str(path), **shared}
            grown[name] = measure_memory(job, [feeds for _, feeds in self._cases])
        return grown
