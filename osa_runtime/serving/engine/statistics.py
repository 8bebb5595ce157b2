"""Counts and times of each model, in the protocol's terms. They outlive the model: a reload does not reset them.

Only the event loop writes; the counters are plain numbers and cost next to nothing. A snapshot has those of one process
at a moment, or of several workers together.
"""

from __future__ import annotations

import bisect
import dataclasses
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, TypeVar

LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LARGER = frozenset({"bounds", "last_inference", "latest", "most"})  # figures that are not summed
T = TypeVar("T")


@dataclass(slots=True)
class Duration:
    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds


@dataclass(slots=True)
class Histogram:
    bounds: tuple[float, ...]
    sum: float = 0.0
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        total, result = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            result.append((bound, float(total)))
        return result


@dataclass(slots=True)
class Phases:
    """Seconds that a batch spent in its three steps, or ``count`` batches, or the requests in them."""

    join: float = 0.0
    run: float = 0.0
    split: float = 0.0
    count: int = 1

    def add(self, other: Phases) -> None:
        self.join += other.join
        self.run += other.run
        self.split += other.split
        self.count += other.count


def _no_phases() -> Phases:
    return Phases(count=0)


@dataclass(slots=True)
class ModelStatistics:
    last_inference: float = 0.0  # seconds since the epoch
    rows: int = 0
    executions: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    requests: Phases = field(default_factory=_no_phases)
    batches: dict[int, Phases] = field(default_factory=lambda: defaultdict(_no_phases))
    failures: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # by status
    nonfinite: int = 0
    beyond_calibration: int = 0
    retried_batches: int = 0
    latency: Histogram = field(default_factory=lambda: Histogram(LATENCY_BUCKETS))
    batch_rows: Histogram = field(default_factory=lambda: Histogram(ROW_BUCKETS))

    def add_batch(self, rows: int, phases: Phases) -> None:
        self.executions += 1
        self.rows += rows
        self.last_inference = time.time()
        self.batch_rows.add(rows)
        self.batches[rows].add(phases)

    def add_success(self, seconds: float, waited: float, phases: Phases) -> None:
        self.success.add(seconds)
        self.latency.add(seconds)
        self.queue.add(waited)
        self.requests.add(phases)

    def add_failure(self, seconds: float, status: int) -> None:
        self.fail.add(seconds)
        self.failures[status] += 1


Key = tuple[str, int]  # a model and its version
Book = defaultdict[Key, ModelStatistics]  # of every model and version that this server has ever had


@dataclass
class Snapshot:
    """``pages`` are those of the book; ``latest`` and ``most`` are squarings, by model and layer."""

    pages: dict[Key, ModelStatistics] = field(default_factory=dict)
    queued: dict[Key, int] = field(default_factory=dict)
    running: dict[Key, int] = field(default_factory=dict)
    latest: dict[tuple[Key, str], int] = field(default_factory=dict)
    most: dict[tuple[Key, str], int] = field(default_factory=dict)
    connections: int = 0

    def page(self, key: Key) -> ModelStatistics:
        return self.pages.get(key) or ModelStatistics()

    def past(self) -> Snapshot:
        """The counts that outlive their process, without those of requests under way."""
        return Snapshot(self.pages, most=self.most)


def together(mine: T, theirs: T) -> T:
    """The figures of two processes."""
    return _together(mine, theirs, larger=False)


def _together(mine: Any, theirs: Any, *, larger: bool) -> Any:
    if dataclasses.is_dataclass(mine):
        kind: Any = type(mine)
        names = [item.name for item in dataclasses.fields(mine)]
        pairs = {name: (getattr(mine, name), getattr(theirs, name)) for name in names}
        return kind(**{name: _together(*pair, larger=name in LARGER) for name, pair in pairs.items()})
    if isinstance(mine, dict):
        both = {key: _together(mine[key], theirs[key], larger=larger) for key in mine.keys() & theirs.keys()}
        return mine | theirs | both
    if isinstance(mine, list):
        return [a + b for a, b in zip(mine, theirs, strict=True)]
    return max(mine, theirs) if larger else mine + theirs
