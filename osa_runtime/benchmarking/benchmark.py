"""One benchmark from start to end: load, agree on the answers, time in rotation, then memory and profile."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.benchmarking.configurations import REAL_DATA, BenchmarkSettings, Configuration, build_cases
from osa_runtime.benchmarking.machine import ContentionWatch, contention_doubt, describe_machine
from osa_runtime.benchmarking.memory import MemoryGrowth, measure_memory, memory_can_be_measured
from osa_runtime.benchmarking.node_profile import profile_artifact
from osa_runtime.benchmarking.result import ARTIFACT, EAGER, BenchmarkResult, Measurement, ratio, summarise
from osa_runtime.benchmarking.timing import TimedCall, describe_session, eager_class, rotate, timed_opening
from osa_runtime.errors import InputError, RunError
from osa_runtime.parity import compare_arrays, relative_tolerance
from osa_runtime.runtime.session import load

if TYPE_CHECKING:
    from osa_runtime.benchmarking.eager import EagerModel

Array = NDArray[Any]
# Called with a description of the step, the number of its parts that are done, and their total.
ShowProgress = Callable[[str, int, int], None]
NO_MEMORY = "memory was not measured: only Linux reports the peak of a process"


class Benchmark:
    """The contenders, opened, and the inputs of every configuration; the outputs of all of them are finite."""

    def __init__(self, settings: BenchmarkSettings) -> None:
        self._settings = settings
        open_artifact = partial(load, settings.artifact, settings.device, threads=settings.threads)
        self._session, seconds = timed_opening(open_artifact)
        self._load_seconds = {ARTIFACT: seconds}
        if settings.trace is not None and self._session.format != "onnx":
            raise InputError(
                f"trace={settings.trace} needs an ONNX model, {settings.artifact} is {self._session.format}."
            )
        self._cases, self._fed, self._notes = build_cases(self._session, settings)
        self._outputs = [self._first_run(*case) for case in self._cases]
        self._eager = self._open_eager(settings) if settings.against is not None else None

    def _first_run(self, configuration: Configuration, feeds: Mapping[str, Array]) -> dict[str, Array]:
        try:
            return self._session.run(feeds, check_finite=True)
        except RunError as error:
            advice = "" if self._settings.read_data else f" It was fed {self._fed}; {REAL_DATA}."
            raise RunError(f"With {configuration} there is nothing to measure: {error}{advice}") from error

    def _open_eager(self, settings: BenchmarkSettings) -> EagerModel:
        assert settings.against is not None
        half = is_half(self._outputs[0])
        start = partial(eager_class(), settings.against, settings.device, settings.threads, half)
        model, self._load_seconds[EAGER] = timed_opening(start)
        return model

    @functools.cached_property
    def disagreement(self) -> str | None:
        """The first difference between the answers of checkpoint and artifact; None when they agree everywhere."""
        if self._eager is None:
            return None
        for (configuration, feeds), ours in zip(self._cases, self._outputs, strict=True):
            theirs = self._eager.run(feeds, self._order)
            dtype = self._session.manifest.dtype if self._session.manifest else None
            problem = find_difference(ours, theirs, self._session.format, self._eager.depth, dtype)
            if problem:
                return (
                    f"{self._settings.artifact} and {self._settings.against} return different answers with "
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

    def measure(self, show_progress: ShowProgress = lambda *_: None) -> BenchmarkResult:
        """Time every configuration. Raises RunError where the contenders disagree."""
        if self.disagreement:
            raise RunError(self.disagreement)
        settings, machine, notes = self._settings, describe_machine(), self._notes.copy()
        measurements = tuple(self._measure(*case, show_progress) for case in self._cases)
        memory = self._memory(show_progress) if settings.memory and memory_can_be_measured() else {}
        if settings.memory and not memory:
            notes.append(NO_MEMORY)
        profile = None
        if settings.trace is not None:
            configuration, feeds = self._cases[-1]
            show_progress(f"profile, {configuration}", 0, 1)
            profile = profile_artifact(settings, feeds, settings.trace)
            notes.append(f"the profile is of {configuration}, in runs of its own, which the tracing slows down")
        return BenchmarkResult(
            artifact=describe_session(self._session, settings.artifact),
            against={"path": str(settings.against), "sha256": self._eager.weights_hash} if self._eager else None,
            machine=machine,
            settings=settings.as_dict(),
            fed=self._fed,
            load_seconds=self._load_seconds,
            measurements=measurements,
            memory=memory,
            profile=profile,
            notes=tuple(notes),
        )

    def _measure(
        self, configuration: Configuration, feeds: Mapping[str, Array], show_progress: ShowProgress
    ) -> Measurement:
        contenders: dict[str, TimedCall] = {ARTIFACT: partial(self._session.run, feeds)}
        if self._eager is not None:
            contenders[EAGER] = partial(self._eager.run, feeds, self._order)
        total, rounds = self._settings.schedule.blocks, iter(range(1, self._settings.schedule.blocks + 1))
        show_progress(str(configuration), 0, total)
        watch = ContentionWatch()
        blocks = rotate(
            contenders,
            self._settings.schedule,
            after_round=lambda: show_progress(str(configuration), next(rounds), total),
        )
        busy = watch.busy_cores()
        doubt = contention_doubt(busy, self._settings.threads)
        return Measurement(
            configuration,
            {name: array.shape for name, array in feeds.items()},
            {name: summarise(found, configuration.batch, doubt) for name, found in blocks.items()},
            busy,
            ratio(blocks[ARTIFACT], blocks[EAGER]) if self._eager is not None else None,
        )

    def _memory(self, show_progress: ShowProgress) -> dict[str, MemoryGrowth]:
        settings = self._settings
        paths = {ARTIFACT: settings.artifact} | ({EAGER: settings.against} if settings.against else {})
        shared = {
            "format": self._session.format,
            "device": settings.device,
            "threads": settings.threads,
            "half": is_half(self._outputs[0]),
            "order": self._order,
        }
        grown = {}
        for done, (name, path) in enumerate(paths.items()):
            show_progress(f"memory, {name}", done, len(paths))
            job = {"contender": name, "path": str(path), **shared}
            grown[name] = measure_memory(job, [feeds for _, feeds in self._cases])
        return grown


def is_half(outputs: Mapping[str, Array]) -> bool:
    return any(output.dtype == np.float16 for output in outputs.values())


def find_difference(
    ours: Mapping[str, Array],
    theirs: Sequence[Array],
    format: str,  # noqa: A002
    depth: int,
    dtype: str | None = None,
) -> str | None:
    """The first output in which artifact and eager differ by more than rounding; None when there is none."""
    if len(ours) != len(theirs):
        return f"the artifact has {len(ours)} outputs, eager has {len(theirs)}"
    tolerance = relative_tolerance(format, dtype or ("fp16" if is_half(ours) else "fp32"), depth)
    for (name, actual), expected in zip(ours.items(), theirs, strict=True):
        result = compare_arrays(actual, expected, tolerance)
        if not result:
            return f"output {name}: {result.reason}"
    return None
