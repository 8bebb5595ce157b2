"""The models that are served, and rounds of blocks: at each point all contenders take their turn.

The next round begins with another of them. Ratios are taken round by round, so that a slow minute hurts both alike.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from osa_runtime import export, load
from osa_runtime.benchmarking.result import Percentiles, spread_of
from osa_runtime.benchmarking.timing import timed_opening
from serving_load.client import Block, run_block
from serving_load.messages import BadAnswer, Question
from serving_load.servers import Contender, ServerWatch

PAUSE, WARM_UP = 0.2, 0.4
QUESTIONS = 16


def write_mlp(folder: Path) -> Path:
    """A model that runs in some microseconds, so that what is measured is the server."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 10, bias=False))
    names = {"input_names": ["x"], "output_names": ["y"]}
    axes = {"x": {0: torch.export.Dim("batch", min=1)}}
    return export(layers, torch.zeros(2, 64), folder, dynamic_shapes=axes, checked=False, **names).folder


class Served:
    """A model under the name of its folder, with a session in this process to compare with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        self._session = load(folder, threads=1)
        (spec,) = self._session.inputs
        shape = [1, *(axis for axis in spec.shape[1:] if isinstance(axis, int))]
        self.questions = []
        for seed in range(QUESTIONS):
            array = np.random.default_rng(seed).standard_normal(shape, np.float32)
            (answer,) = self._session.run({spec.name: array}).values()
            self.questions.append(Question(self.name, spec.name, array, answer))

    def run_time(self, runs: int = 50) -> float:
        """Seconds that one run takes in this process: the median."""
        feeds = {self.questions[0].input: self.questions[0].array}
        return timed_opening(lambda: self._session.run(feeds), runs)[1]


class Point(NamedTuple):
    model: str
    protocol: str
    concurrency: int


@dataclass
class Measured:
    """A block per round, by contender and point; one that answered wrongly has a reason in ``failures`` instead.

    ``others`` has the cores that other processes used, per block; ``runs`` the models' own seconds, per round.
    """

    blocks: dict[tuple[str, Point], list[Block]] = field(default_factory=dict)
    failures: dict[tuple[str, Point], str] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)
    runs: dict[str, list[float]] = field(default_factory=dict)

    def figures(self, name: str, point: Point, figure: str = "rate") -> list[float]:
        return [getattr(block, figure) for block in self.blocks.get((name, point), ())]

    def median(self, name: str, point: Point, figure: str = "rate") -> float | None:
        found = self.figures(name, point, figure)
        return statistics.median(found) if found else None

    def ratio(self, name: str, point: Point, other: str, there: Point | None = None) -> Percentiles | None:
        """The rate over that of another contender, at the same point unless it says otherwise."""
        ours, theirs = self.figures(name, point), self.figures(other, there or point)
        return spread_of(np.divide(ours, theirs)) if ours and theirs else None

    def fastest(self, name: str, model: str, concurrency: int, protocols: Sequence[str]) -> Point | None:
        """The first protocol where it works, otherwise the fastest of the others."""
        points = [Point(model, protocol, concurrency) for protocol in protocols]
        working = [point for point in points if self.figures(name, point)]
        if points[0] in working:
            return points[0]
        return max(working, key=lambda point: self.median(name, point) or 0, default=None)

    def overhead(self, name: str, point: Point) -> float | None:
        """Seconds of a request beyond the model's own run, client and network stack included."""
        latency = self.median(name, point, "median")
        return None if latency is None else latency - statistics.median(self.runs[point.model])


def measure(
    contenders: Sequence[Contender],
    models: Sequence[Served],
    plan: Mapping[Point, Sequence[str]],
    rounds: int,
    seconds: float,
) -> Measured:
    """``plan`` has the contenders that are asked at each point."""
    measured, by_name = Measured(), {model.name: model for model in models}
    for number in range(rounds):
        for model in models:
            measured.runs.setdefault(model.name, []).append(model.run_time())
        for point, names in plan.items():
            there = [contender for contender in contenders if contender.name in names]
            first = number % len(there) if there else 0
            for contender in (*there[first:], *there[:first]):
                _measure_block(measured, contender, point, by_name[point.model].questions, seconds)
        print(f"round {number + 1} of {rounds} done", flush=True)
    return measured


def _measure_block(
    measured: Measured, contender: Contender, point: Point, questions: Sequence[Question], seconds: float
) -> None:
    key = contender.name, point
    if key in measured.failures:
        return
    time.sleep(PAUSE)
    watch = ServerWatch(contender.process)
    address = contender.grpc if point.protocol == "grpc" else contender.http
    try:
        block = run_block(address, questions, point.protocol, point.concurrency, WARM_UP, seconds)
    except (BadAnswer, OSError) as error:
        measured.failures[key] = " ".join(str(error).split())
        measured.blocks.pop(key, None)
        return
    used, others = watch.look()
    measured.blocks.setdefault(key, []).append(block._replace(core_seconds=used / block.answers))
    measured.others.append(others)
