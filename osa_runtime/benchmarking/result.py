"""The result of a benchmark: figures from timed calls, with reasons not to trust them, as objects and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from osa_runtime.benchmarking.configurations import Configuration
from osa_runtime.benchmarking.memory import MemoryGrowth
from osa_runtime.benchmarking.node_profile import NodeProfile
from osa_runtime.benchmarking.timing import Blocks

MILLISECOND = 1e6  # in nanoseconds
LEAST_CALLS = 30
LEAST_BLOCKS = 5
LARGEST_SPREAD = 0.2


@dataclass(frozen=True)
class Percentiles:
    """The median of the blocks' figures, and the 10th and 90th percentile of them."""

    median: float
    p10: float
    p90: float

    @property
    def relative(self) -> float:
        return (self.p90 - self.p10) / self.median

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Figures:
    """Latency and throughput. ``doubt`` is a reason not to trust them, or None."""

    calls: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    rows_per_second: float
    block_medians_ms: Percentiles
    doubt: str | None


def summarise(blocks: Blocks, rows: int, contention: str | None = None) -> Figures:
    """The figures of one contender; each call took ``rows`` rows. ``contention`` is a doubt due to other processes."""
    times = np.array([max(1, time) for block in blocks for time in block], np.float64) / MILLISECOND
    p50, p90, p99 = (float(value) for value in np.percentile(times, (50, 90, 99)))
    throughput = rows * times.size / float(times.sum()) * 1e3
    spread = spread_of(block_medians(blocks))
    doubt = contention or _doubt(times.size, len(blocks), spread)
    return Figures(times.size, p50, p90, p99, throughput, spread, doubt)


def ratio(ours: Blocks, theirs: Blocks) -> Percentiles:
    """The ratio of their time to ours, from medians of the same round."""
    return spread_of(block_medians(theirs) / block_medians(ours))


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_ratio(value: float) -> str:
    return f"{value:.{0 if value >= 10 else 1 if value >= 1.05 else 2}f}×"


def block_medians(blocks: Blocks) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([max(1.0, float(np.median(block))) for block in blocks]) / MILLISECOND


def spread_of(values: np.ndarray[Any, np.dtype[np.float64]]) -> Percentiles:
    """The median and the 10th and 90th percentile."""
    p10, median, p90 = np.percentile(values, (10, 50, 90))
    return Percentiles(float(median), float(p10), float(p90))


def _doubt(calls: int, blocks: int, spread: Percentiles) -> str | None:
    if calls < LEAST_CALLS or blocks < LEAST_BLOCKS:
        return f"{calls} calls in {blocks} blocks are too few; expected {LEAST_CALLS} in {LEAST_BLOCKS} or more."
    if spread.relative > LARGEST_SPREAD:
        return (
            f"the medians of the blocks spread by {spread.relative:.0%}, more than {LARGEST_SPREAD:.0%}; "
            "measure again when the machine is quiet, or for longer."
        )
    return None


VERSION = 1
ARTIFACT, EAGER = "artifact", "eager"
PLAIN = ("artifact", "against", "machine", "settings", "fed", "load_seconds", "notes")  # as JSON has them
TIMED = "one call with arrays in and arrays out: checks of the inputs and copies to and from the device are part of it"


@dataclass(frozen=True)
class Measurement:
    """The figures of one configuration by contender. ``ratio`` is eager's time over the artifact's.

    ``cores_busy_with_others`` is None where the system does not report it.
    """

    configuration: Configuration
    shapes: Mapping[str, tuple[int, ...]]
    figures: Mapping[str, Figures]
    cores_busy_with_others: float | None = None
    ratio: Percentiles | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.configuration),
            "inputs": {name: list(shape) for name, shape in self.shapes.items()},
            "cores_busy_with_others": self.cores_busy_with_others,
            "contenders": {name: asdict(figures) for name, figures in self.figures.items()},
            "ratio": self.ratio and self.ratio.as_dict(),
        }


@dataclass(frozen=True)
class BenchmarkResult:
    """``load_seconds`` and ``memory`` are by contender; ``memory`` is empty where it was not measured."""

    artifact: Mapping[str, Any]
    against: Mapping[str, Any] | None
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    fed: str
    load_seconds: Mapping[str, float]
    measurements: tuple[Measurement, ...]
    memory: Mapping[str, MemoryGrowth] = field(default_factory=dict)
    profile: NodeProfile | None = None
    notes: tuple[str, ...] = ()

    @property
    def contenders(self) -> tuple[str, ...]:
        return tuple(self.measurements[0].figures)

    @property
    def doubts(self) -> list[str]:
        """Reasons not to trust figures: the first of each configuration that has one."""
        first = [(m, next((f.doubt for f in m.figures.values() if f.doubt), None)) for m in self.measurements]
        return [f"{m.configuration}: {doubt}" for m, doubt in first if doubt]

    def as_dict(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "timed": TIMED,
            **{name: getattr(self, name) for name in PLAIN},
            "configurations": [self._described(i) for i in range(len(self.measurements))],
            "memory_growth_at_load": {name: grown.load for name, grown in self.memory.items()},
            "profile": self.profile and asdict(self.profile),
            "trustworthy": not self.doubts,
        }

    def _described(self, index: int) -> dict[str, Any]:
        described = self.measurements[index].as_dict()
        for name, figures in described["contenders"].items():
            figures["peak_memory_growth"] = self.memory[name].run[index] if name in self.memory else None
        return described
