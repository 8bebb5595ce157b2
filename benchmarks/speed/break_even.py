"""At which lengths somebody else is faster, from ratios at some lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping

Range = tuple[float, float]


def losing_ranges(ratios: Mapping[int, float]) -> list[Range]:
    """The ranges of lengths in which the ratio is below 1.

    Between neighbouring lengths the logarithm of the ratio is taken to be linear in that of the length. A range that
    begins at the shortest, or ends at the longest length that was measured, may go on beyond it.
    """
    lengths = sorted(ratios)
    ranges: list[Range] = []
    start: float | None = None
    for here, following in zip(lengths, [*lengths[1:], None], strict=True):
        losing = ratios[here] < 1
        if losing and start is None:
            start = float(here)
        if start is None and following is not None and ratios[following] < 1:
            start = _crossing(here, following, ratios)
        elif start is not None and losing and (following is None or ratios[following] >= 1):
            ranges.append((start, float(here) if following is None else _crossing(here, following, ratios)))
            start = None
    return ranges


def break_even(ratios: Mapping[int, float]) -> float | None:
    """The length beyond which the ratio stays above 1; None where it does not at the longest length."""
    ranges = losing_ranges(ratios)
    if not ranges:
        return float(min(ratios))
    return None if ratios[max(ratios)] < 1 else ranges[-1][1]


def describe_ranges(ratios: Mapping[int, float]) -> str:
    """The lengths at which softmax wins, in words."""
    if not ratios:
        return "not measured"
    ranges = losing_ranges(ratios)
    if not ranges:
        return f"softmax wins nowhere from {min(ratios)} to {max(ratios)} tokens"
    spans = [f"{low:.0f} to {high:.0f}" if round(low) != round(high) else f"{low:.0f}" for low, high in ranges]
    return f"softmax wins at {', '.join(spans)} tokens (of {min(ratios)} to {max(ratios)})"


def _crossing(low: int, high: int, ratios: Mapping[int, float]) -> float:
    y_low, y_high = math.log(ratios[low]), math.log(ratios[high])
    if y_low == y_high:
        return float(high)
    part = y_low / (y_low - y_high)
    return math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
