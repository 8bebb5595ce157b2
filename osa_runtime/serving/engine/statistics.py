"""Counts and times of each model, in the protocol's terms. They outlive the model: a reload does not reset them.

Only the event loop writes; the counters are plain numbers and cost next to nothing. A snapshot has those of one process
at a moment, or of several workers together.
"""

from __future__ import annotations

import bisect
import time
from collections import Counter
from dataclasses import dataclass, field

LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(slots=True)
class Duration:
    count: int = 0
    seconds: float = 0.0

    def plus(self, other: Duration) -> Duration:
        return Duration(self.count + other.count, self.seconds + other.seconds)

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.seconds += seconds


class Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def plus(self, other: Histogram) -> Histogram:
        total = Histogram(self.bounds)
        total.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        total.sum = self.sum + other.sum
        return total

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

    def plus(self, other: Phases) -> Phases:
        return Phases(self.join + other.join, self.run + other.run, self.split + other.split, self.count + other.count)


class ModelStatistics:
    def __init__(self) -> None:
        self.last_inference = 0.0  # seconds since the epoch
        self.rows = 0
        self.executions = 0
        self.success = Duration()
        self.fail = Duration()
        self.queue = Duration()
        self.requests = Phases(count=0)
        self.batches: dict[int, Phases] = {}
        self.failures: dict[int, int] = {}  # by status
        self.nonfinite = 0
        self.beyond_calibration = 0
        self.retried_batches = 0
        self.latency = Histogram(LATENCY_BUCKETS)
        self.batch_rows = Histogram(ROW_BUCKETS)

    def plus(self, other: ModelStatistics) -> ModelStatistics:
        """Of two processes together."""
        total = ModelStatistics()
        for name, value in vars(self).items():
            theirs = getattr(other, name)
            if name == "last_inference":
                combined = max(value, theirs)
            elif name == "batches":
                combined = {rows: value[rows].plus(theirs[rows]) for rows in value.keys() & theirs.keys()}
                combined = value | theirs | combined
            elif name == "failures":
                combined = dict(Counter(value) + Counter(theirs))
            else:
                combined = value.plus(theirs) if hasattr(value, "plus") else value + theirs
            setattr(total, name, combined)
        return total

    def add_batch(self, rows: int, phases: Phases) -> None:
        self.executions += 1
        self.rows += rows
        self.last_inference = time.time()
        self.batch_rows.add(rows)
        batch = self.batches.get(rows)
        if batch is None:
            batch = self.batches[rows] = Phases(count=0)
        batch.add(phases)

    def add_success(self, seconds: float, waited: float, phases: Phases) -> None:
        self.success.add(seconds)
        self.latency.add(seconds)
        self.queue.add(waited)
        self.requests.add(phases)

    def add_failure(self, seconds: float, status: int) -> None:
        self.fail.add(seconds)
        self.failures[status] = self.failures.get(status, 0) + 1


class StatisticsBook:
    """The statistics of every model and version that this server has ever had."""

    def __init__(self) -> None:
        self._pages: dict[tuple[str, int], ModelStatistics] = {}

    def page(self, name: str, version: int) -> ModelStatistics:
        return self._pages.setdefault((name, version), ModelStatistics())

    def items(self) -> list[tuple[tuple[str, int], ModelStatistics]]:
        return sorted(self._pages.items(), key=lambda item: item[0])


Key = tuple[str, int]  # a model and its version


@dataclass
class Snapshot:
    """``pages`` are those of the book; ``latest`` and ``most`` are squarings, by model and layer."""

    pages: dict[Key, ModelStatistics] = field(default_factory=dict)
    queued: Counter[Key] = field(default_factory=Counter)
    running: Counter[Key] = field(default_factory=Counter)
    latest: dict[tuple[Key, str], int] = field(default_factory=dict)
    most: dict[tuple[Key, str], int] = field(default_factory=dict)
    connections: int = 0

    def page(self, key: Key) -> ModelStatistics:
        return self.pages.get(key) or ModelStatistics()

    def plus(self, other: Snapshot) -> Snapshot:
        pages = dict(self.pages)
        for key, page in other.pages.items():
            pages[key] = pages[key].plus(page) if key in pages else page
        return Snapshot(
            pages,
            self.queued + other.queued,
            self.running + other.running,
            _larger(self.latest, other.latest),
            _larger(self.most, other.most),
            self.connections + other.connections,
        )

    def past(self) -> Snapshot:
        """The part that outlives its process: what it counted, not what it was doing."""
        return Snapshot(self.pages, most=self.most)


def _larger(mine: dict[tuple[Key, str], int], theirs: dict[tuple[Key, str], int]) -> dict[tuple[Key, str], int]:
    return {layer: max(mine.get(layer, 0), theirs.get(layer, 0)) for layer in {**mine, **theirs}}
