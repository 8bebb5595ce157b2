"""The models that are served, and servers that take turns in blocks of load on them."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from driver.contest import Figures, Pace, Row
from torch import nn

from osa_runtime import export, load
from osa_runtime.benchmarking.timing import in_turn, timed_opening
from osa_runtime.environment import usable_cores
from serving_load.client import Block, run_block
from serving_load.messages import BadAnswer, Question
from serving_load.servers import Contender, ServerWatch

PAUSE, WARM_UP = 0.2, 0.4
QUESTIONS = 16
ITSELF = "ONNX Runtime in the client's process"
LATENCY, SLOWEST = "Milliseconds of a request: the median", "Milliseconds of a request: the 99th percentile"
OVERHEAD = "Milliseconds of a request beyond the model's own run"
CORE, MEMORY = "Milliseconds of a core that the server takes per request", "MB of the server"


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

    def run_here(self, runs: int = 50) -> Block:
        """The model alone, without a server."""
        feeds = {self.questions[0].input: self.questions[0].array}
        seconds = timed_opening(lambda: self._session.run(feeds), runs)[1]
        return Block(1 / seconds, seconds, seconds, runs)

    def ask(self, contender: Contender, protocol: str, connections: int, seconds: float) -> Block:
        watch = ServerWatch(contender.process)
        address = contender.grpc if protocol == "grpc" else contender.http
        block = run_block(address, self.questions, protocol, connections, WARM_UP, seconds)
        used, others = watch.look()
        return block._replace(core_seconds=used / block.answers, busy=others, memory=contender.memory())


class Point(NamedTuple):
    model: str
    connections: int

    def __str__(self) -> str:
        return f"{self.model}, c={self.connections}"


class ServedRow(Row):
    """A block for each round, with the nanoseconds per answered request; only the load of others is a doubt."""

    def doubt(self, _: str) -> str | None:
        return self.contention


@dataclass(frozen=True)
class ServedContest:
    """Each of ``asks`` puts one block of load on a server. One that answers wrongly has a reason instead of figures."""

    place: Point
    asks: Mapping[str, Callable[[], Block]]
    missing: Mapping[str, str] = field(default_factory=dict)

    def measure(self, pace: Pace) -> ServedRow:
        blocks: dict[str, list[Block]] = {name: [] for name in self.asks}
        missing = dict(self.missing)
        for turn in range(pace.rounds):
            for name in (name for name in in_turn(list(self.asks), turn) if name in blocks):
                time.sleep(PAUSE)
                try:
                    blocks[name].append(self.asks[name]())
                except (BadAnswer, OSError) as error:
                    missing[name] = " ".join(str(error).split())[:160]
                    del blocks[name]
        times = {name: [[round(1e9 / block.rate)] for block in found] for name, found in blocks.items()}
        busy = statistics.median([block.busy for found in blocks.values() for block in found] or [0.0])
        return ServedRow(self.place, times, busy, usable_cores(), missing=missing, figures=figures_of(blocks))


def figures_of(blocks: Mapping[str, list[Block]]) -> dict[str, Figures]:
    """The medians of the rounds; server and client and the network between them are part of the overhead."""
    medians = {name: Block(*map(statistics.median, zip(*found, strict=True))) for name, found in blocks.items()}
    found: dict[str, dict[str, float | None]] = {}
    for name, block in medians.items():
        found[name] = {LATENCY: 1e3 * block.median, SLOWEST: 1e3 * block.p99}
        if name != ITSELF:
            found[name] |= {CORE: 1e3 * block.core_seconds, MEMORY: block.memory}
            found[name][OVERHEAD] = 1e3 * (block.median - medians[ITSELF].median) if ITSELF in medians else None
    return found
