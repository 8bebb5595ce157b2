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
from torch import Tensor, nn

from osa_runtime import export, load
from osa_runtime.benchmarking.result import Percentiles, spread_of
from serving_load.client import Block, run_block
from serving_load.messages import BadAnswer, Question
from serving_load.servers import Contender, ServerWatch

PAUSE, WARM_UP, RUN_SECONDS = 0.2, 0.4, 0.5
QUESTIONS = 16


def write_mlp(folder: Path) -> Path:
    """A model that runs in some microseconds, so that what is measured is the server."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 10, bias=False))
    return _write(layers, torch.zeros(2, 64), folder)


def write_mean(folder: Path) -> Path:
    """The mean of each channel of an image: next to no work on as many bytes as a vision transformer takes."""
    return _write(nn.AdaptiveAvgPool2d(1), torch.zeros(2, 3, 224, 224), folder)


def _write(module: nn.Module, example: Tensor, folder: Path) -> Path:
    axes = {"x": {0: torch.export.Dim("batch", min=1)}}
    export(module, example, folder, input_names=["x"], output_names=["y"], dynamic_shapes=axes, checked=False)
    return folder


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

    def run_time(self, seconds: float) -> float:
        """Seconds that one run takes in this process: the median."""
        times: list[float] = []
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            question = self.questions[len(times) % QUESTIONS]
            start = time.perf_counter()
            self._session.run({question.input: question.array})
            times.append(time.perf_counter() - start)
        return statistics.median(times)


class Point(NamedTuple):
    model: str
    protocol: str
    concurrency: int


@dataclass
class Series:
    """The blocks of one contender at one point, one per round; or why there are none.

    ``cores`` has the seconds that the server computed per request: other processes hardly change it.
    """

    blocks: list[Block] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def rates(self) -> list[float]:
        return [block.rate for block in self.blocks]

    @property
    def rate(self) -> float | None:
        return statistics.median(self.rates) if self.blocks else None

    @property
    def latency(self) -> float | None:
        return statistics.median(block.median for block in self.blocks) if self.blocks else None

    @property
    def core_seconds(self) -> float | None:
        """Seconds of a core per request."""
        return statistics.median(self.cores) if self.cores else None

    @property
    def spread(self) -> float | None:
        """From the slowest to the fastest round, relative to the median."""
        return (max(self.rates) - min(self.rates)) / statistics.median(self.rates) if self.blocks else None

    def ratio(self, other: "Series") -> Percentiles | None:
        return spread_of(np.divide(self.rates, other.rates)) if self.blocks and other.blocks else None


@dataclass
class Measured:
    """``others`` has the cores that other processes used, per block; ``runs`` the models' own seconds, per round."""

    table: dict[tuple[str, Point], Series] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)
    runs: dict[str, list[float]] = field(default_factory=dict)

    def at(self, name: str, point: Point) -> Series:
        return self.table.get((name, point), Series())

    def fastest(self, name: str, model: str, concurrency: int, protocols: Sequence[str]) -> Point | None:
        """The first protocol where it works, otherwise the fastest of the others."""
        points = [Point(model, protocol, concurrency) for protocol in protocols]
        working = [point for point in points if self.at(name, point).blocks]
        if points[0] in working:
            return points[0]
        return max(working, key=lambda point: self.at(name, point).rate or 0, default=None)

    def overhead(self, name: str, point: Point) -> float | None:
        """Seconds of a request beyond the model's own run, client and network stack included."""
        latency = self.at(name, point).latency
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
            measured.runs.setdefault(model.name, []).append(model.run_time(RUN_SECONDS))
        for point, names in plan.items():
            there = [contender for contender in contenders if contender.name in names]
            first = number % len(there) if there else 0
            for contender in (*there[first:], *there[:first]):
                series = measured.table.setdefault((contender.name, point), Series())
                if series.failure:
                    continue  # a contender that answered wrongly has no figure
                time.sleep(PAUSE)
                watch = ServerWatch(contender.processes)
                addresses = contender.grpc if point.protocol == "grpc" else contender.http
                questions = by_name[point.model].questions
                try:
                    block = run_block(addresses, questions, point.protocol, point.concurrency, WARM_UP, seconds)
                except (BadAnswer, OSError) as error:
                    series.failure, series.blocks, series.cores = str(error), [], []
                    continue
                used, others = watch.look()
                series.blocks.append(block)
                series.cores.append(used / block.answers)
                measured.others.append(others)
        print(f"round {number + 1} of {rounds} done", flush=True)
    return measured
