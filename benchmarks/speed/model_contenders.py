"""One model in all its formats, the same in eager and compiled, and the softmax model of the same sizes."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from osa_runtime import load
from osa_runtime.benchmarking.memory import measure_memory, memory_can_be_measured
from osa_runtime.benchmarking.rotation import Call
from osa_runtime.models import load_checkpoint
from speed.attention_inputs import relative_error
from speed.contest import Contest, Pace, compete, fastest
from speed.model_artifacts import COMPILED, EAGER, FORMATS, ORT, PT2, SOFTMAX, TORCHSCRIPT, write_artifacts
from speed.models import Subject
from speed.repeated import median_seconds

ALL = (ORT, TORCHSCRIPT, PT2, EAGER, COMPILED, SOFTMAX)
BATCHES = (1, 8)
WRONG = 1e-2

Array = NDArray[Any]
Say = Callable[[str], None]
Run = Callable[[Array], Array]


@dataclass(frozen=True)
class Meeting:
    """The contest at one batch, with the errors against float64; ``way`` is that of the fastest softmax."""

    batch: int
    contest: Contest
    errors: Mapping[str, float]
    way: str

    def as_dict(self) -> dict[str, Any]:
        measured = self.contest.as_dict()
        for name, figures in measured["contenders"].items():
            figures |= {
                "error": self.errors.get(name),
                "rows_per_second": 1e3 * self.batch / figures["median_ms"],
            }
        return {"batch": self.batch, "softmax_way": self.way, **measured}


@dataclass(frozen=True)
class Footprint:
    """``memory`` has the peak growth of a fresh process by batch; empty where the system does not tell."""

    bytes_on_disk: int
    load_seconds: float
    memory: tuple[int, ...]


@dataclass(frozen=True)
class ModelResult:
    """``missing`` says why a contender has no figure."""

    subject: Subject
    meetings: tuple[Meeting, ...]
    footprints: Mapping[str, Footprint]
    missing: Mapping[str, str]

    def at(self, batch: int) -> Meeting | None:
        return next((meeting for meeting in self.meetings if meeting.batch == batch), None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.subject.name,
            "config": self.subject.config.to_dict(),
            "tokens": self.subject.tokens,
            "batches": [meeting.as_dict() for meeting in self.meetings],
            "footprints": {name: asdict(found) for name, found in self.footprints.items()},
            "missing": dict(self.missing),
        }


class OpenedModel:
    """A model with all its contenders, exported into ``folder`` and opened."""

    def __init__(self, subject: Subject, threads: int, folder: Path, say: Say, names: Sequence[str] = ALL) -> None:
        torch.set_num_threads(threads)
        self.subject, self._threads, self._say = subject, threads, say
        self._model, self._softmax = subject.build(), subject.build("softmax")
        formats = tuple(name for name in FORMATS if name in names)
        softmax = self._softmax if SOFTMAX in names else None
        self._artifacts = write_artifacts(subject, self._model, softmax, folder, say, formats)
        self.missing = dict(self._artifacts.missing)
        self._runs = self._open(names)

    def _open(self, names: Sequence[str]) -> dict[str, dict[str, Run]]:
        """The ways of each contender to run."""
        ways = {name: {"": self._session_run(path)} for name, path in self._artifacts.files.items()}
        if EAGER in names:
            ways[EAGER] = {"": partial(_eager_run, self._model)}
        if COMPILED in names:
            self._say(f"{self.subject.name}: compiling")
            compiled = torch.compile(self._model)
            try:
                _eager_run(compiled, self.subject.inputs(1).numpy())
            except Exception as error:  # noqa: BLE001 - a compiler fails in many ways, and the report says which
                self.missing[COMPILED] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            else:
                ways[COMPILED] = {"": partial(_eager_run, compiled)}
        if self._artifacts.softmax:
            ways[SOFTMAX] = {way: self._session_run(path) for way, path in self._artifacts.softmax.items()}
        return ways

    def _session_run(self, path: Path) -> Run:
        session, name = load(path, threads=self._threads), self.subject.input_name
        return lambda array: next(iter(session.run({name: array}).values()))

    def meet(self, batch: int, pace: Pace) -> Meeting:
        """Whoever answers wrongly is left out, and ``missing`` says so."""
        self._say(f"{self.subject.name}: batch {batch}")
        array = self.subject.inputs(batch).numpy()
        exact: dict[bool, Tensor] = {}
        calls: dict[str, Call] = {}
        errors, way = {}, ""
        for name, ways in self._runs.items():
            if batch > 1 and name in self.subject.only_latency:
                continue
            soft = name == SOFTMAX
            if soft not in exact:
                exact[soft] = _in_double(self._softmax if soft else self._model, array)
            candidates = {key: partial(run, array) for key, run in ways.items()}
            best = fastest(candidates, self._threads)
            way = best if soft else way
            error = relative_error(torch.from_numpy(candidates[best]()), exact[soft])
            if not error <= WRONG:  # NaN, too
                self.missing[f"{name}, batch {batch}"] = f"a wrong answer: its relative error is {error:.1e}"
                continue
            calls[name], errors[name] = candidates[best], error
        return Meeting(batch, compete(calls, pace, self._threads), errors, way)

    def weigh(self, meetings: Sequence[Meeting]) -> dict[str, Footprint]:
        """Load time, size and memory of those that met, at the batches at which they met."""
        feeds = [{self.subject.input_name: self.subject.inputs(meeting.batch).numpy()} for meeting in meetings]
        paths = {**self._artifacts.files, EAGER: self._artifacts.checkpoint}
        if self._artifacts.softmax:
            paths[SOFTMAX] = self._artifacts.softmax[meetings[0].way]
        found = {}
        for name, path in paths.items():
            if any(name in meeting.contest for meeting in meetings):
                self._say(f"{self.subject.name}: load time and memory, {name}")
                size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))
                start = partial(load_checkpoint, path) if name == EAGER else partial(load, path, threads=self._threads)
                found[name] = Footprint(size, median_seconds(start), self._memory(name, path, feeds))
        return found

    def _memory(self, name: str, path: Path, feeds: Sequence[Mapping[str, Array]]) -> tuple[int, ...]:
        if not memory_can_be_measured():
            return ()
        job = {"contender": "eager" if name == EAGER else "artifact", "path": str(path), "device": "cpu"}
        job |= {"format": FORMATS.get(name, "onnx"), "threads": self._threads, "half": False}
        return measure_memory({**job, "order": [self.subject.input_name]}, feeds).run


def measure_model(subject: Subject, pace: Pace, threads: int, say: Say, names: Sequence[str] = ALL) -> ModelResult:
    with tempfile.TemporaryDirectory() as folder:
        opened = OpenedModel(subject, threads, Path(folder), say, names)
        meetings = tuple(opened.meet(batch, pace) for batch in BATCHES)
        return ModelResult(subject, meetings, opened.weigh(meetings), opened.missing)


def _eager_run(model: Callable[[Tensor], Tensor], array: Array) -> Array:
    with torch.inference_mode():
        return model(torch.from_numpy(array)).numpy()


def _in_double(model: nn.Module, array: Array) -> Tensor:
    """Row by row, since softmax in float64 holds all scores of all heads."""
    tensor = torch.from_numpy(array)
    rows = tensor.double() if tensor.is_floating_point() else tensor
    exact = copy.deepcopy(model).double()
    with torch.inference_mode():
        return torch.cat([exact(row[None]) for row in rows])
