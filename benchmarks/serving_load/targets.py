"""What the server must reach, and whether it did."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from serving_load.messages import PROTOCOLS
from serving_load.rounds import Measured, Point
from serving_load.summary import fastest, overhead, ratios

MOST_OVERHEAD = 0.4e-3


@dataclass(frozen=True)
class Verdict:
    """``met`` is None when there is nothing to judge by."""

    target: str
    found: str
    met: bool | None


def verdicts(measured: Measured, model: str) -> Iterator[Verdict]:
    for rival, concurrency, least in (
        ("kserve", 16, 4.0),
        ("mlserver", 16, 4.0),
        ("mlserver, batching", 16, 4.0),
        ("triton", 16, 1.0),
        ("triton, 1 ms delay", 16, 1.0),
        ("triton", 1, 3.0),
        ("triton, 1 ms delay", 1, 3.0),
    ):
        yield _against(measured, model, rival, concurrency, least)
    yield _overhead(measured, model)
    point = Point(model, "binary", 16)
    yield _ratio(measured, "batching at c=16: at least 2 × without", "ours", point, "ours, no batching", point, 2.0)
    yield _ratio(measured, "two workers at c=16: at least 1.6 × one", "ours, 2 workers", point, "ours", point, 1.6)


def _against(measured: Measured, model: str, rival: str, concurrency: int, least: float) -> Verdict:
    theirs = fastest(measured, rival, model, concurrency, PROTOCOLS)
    ours = Point(model, "binary", concurrency)
    title = f"c={concurrency}, binary HTTP: at least {least:g} × {rival}"
    if theirs is None:
        return Verdict(title, "not measured", None)
    if theirs.protocol != "binary":
        title += f" (its {theirs.protocol}: its binary HTTP does not work)"
    return _ratio(measured, title, "ours", ours, rival, theirs, least)


def _ratio(
    measured: Measured, title: str, name: str, point: Point, rival: str, rival_point: Point, least: float
) -> Verdict:
    ours, theirs = measured.table.get((name, point)), measured.table.get((rival, rival_point))
    if ours is None or theirs is None or not ours.blocks or not theirs.blocks:
        return Verdict(title, "not measured", None)
    found = ratios(ours, theirs)
    middle = statistics.median(found)
    return Verdict(title, f"{middle:.2f} × ({min(found):.2f} to {max(found):.2f})", middle >= least)


def _overhead(measured: Measured, model: str) -> Verdict:
    title = "overhead per request at c=1: under 0.4 ms"
    found = overhead(measured, "ours", Point(model, "binary", 1))
    if found is None:
        return Verdict(title, "not measured", None)
    return Verdict(title, f"{1e3 * found:.2f} ms", found < MOST_OVERHEAD)
