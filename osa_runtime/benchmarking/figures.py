"""Figures from timed calls: percentiles, throughput, spread, ratio, and reasons not to trust them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from osa_runtime.benchmarking.rotation import Blocks

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
        return {"median": self.median, "p10": self.p10, "p90": self.p90}


@dataclass(frozen=True)
class Figures:
    """Latency in milliseconds. ``doubt`` is a reason not to trust them, or None."""

    calls: int
    p50: float
    p90: float
    p99: float
    rows_per_second: float
    block_medians: Percentiles
    doubt: str | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "p50_ms": self.p50,
            "p90_ms": self.p90,
            "p99_ms": self.p99,
            "rows_per_second": self.rows_per_second,
            "block_medians_ms": self.block_medians.as_dict(),
            "doubt": self.doubt,
        }


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
