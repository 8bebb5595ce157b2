"""Medians over the rounds, and ratios of contenders, round by round, so that a slow minute hurts both alike."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from serving_load.rounds import Measured, Point, Series


def rate(series: Series | None) -> float | None:
    return statistics.median(block.rate for block in series.blocks) if series and series.blocks else None


def latency(series: Series | None) -> float | None:
    return statistics.median(block.median for block in series.blocks) if series and series.blocks else None


def cpu(series: Series | None) -> float | None:
    """Seconds of a core per request."""
    return statistics.median(series.cpu) if series and series.cpu else None


def spread(series: Series) -> float:
    """From the slowest to the fastest round, relative to the median."""
    rates = [block.rate for block in series.blocks]
    return (max(rates) - min(rates)) / statistics.median(rates)


def ratios(above: Series, below: Series) -> list[float]:
    return [a.rate / b.rate for a, b in zip(above.blocks, below.blocks, strict=True)]


def fastest(measured: Measured, name: str, model: str, concurrency: int, protocols: Sequence[str]) -> Point | None:
    """The first protocol where it works, otherwise the fastest of the others."""
    points = [Point(model, protocol, concurrency) for protocol in protocols]
    rates = {point: rate(measured.table.get((name, point))) for point in points}
    if rates[points[0]] is not None:
        return points[0]
    working = {point: value for point, value in rates.items() if value is not None}
    return max(working, key=lambda point: working[point]) if working else None


def overhead(measured: Measured, name: str, point: Point) -> float | None:
    """Seconds of a request beyond the model's own run, client and network stack included."""
    median = latency(measured.table.get((name, point)))
    return None if median is None else median - statistics.median(measured.runs[point.model])
