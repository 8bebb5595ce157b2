"""The verdict on one row of one output.

It passes within the tolerance of the truth. Beyond, it passes within what rounding explains: eager's own distance from
float64, or how far float64 moves when weights and inputs are changed by as much as rounding changes them. Where that
is so much that no digit is left, the row is undecided while the artifact is within a few times of that, and of a
magnitude that such answers have. Anything else fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.parity.certificate import Verdict
from osa_runtime.parity.comparison import Tolerance
from osa_runtime.parity.tolerances import EAGER_SHARE, NO_DIGITS_LEFT, NORM_SLACK, UNDECIDED_FACTOR

Values = NDArray[np.float64]
Measured = Callable[[], Sequence[NDArray[Any]] | None]


@dataclass(frozen=True)
class Row:
    """One row of each party's answer, flat, in float64; None for a party that was not run."""

    place: int | None  # None: an output without rows
    artifact: Values
    eager: Values | None
    oracle: Values | None
    norm: float
    refusal: str | None = None  # eager's, in its words
    whole: bool = False  # whole numbers or booleans: indices and decisions, not measurements
    shown: bool = False  # NaN or Inf in this row of any output of the artifact

    @property
    def truth(self) -> Values | None:
        return self.oracle if self.oracle is not None else self.eager

    @property
    def is_finite(self) -> bool:
        parties = (self.artifact, self.eager, self.oracle)
        return all(bool(np.isfinite(party).all()) for party in parties if party is not None)


@dataclass(frozen=True)
class RowLimits:
    tolerance: Tolerance
    largest_norm: float | None = None
    strict: bool = False
    reference_norm: float | None = None


@dataclass(frozen=True)
class Finding:
    """``error`` is the tolerance that would have been needed; None if there was nothing to measure, as with
    expected NaN."""

    verdict: Verdict
    reason: str
    tolerance: float
    error: float | None = None

    @property
    def remarkable(self) -> bool:
        return self.verdict != "pass" or self.error is None or self.error > self.tolerance


def judge_row(row: Row, limits: RowLimits, measured: Measured) -> Finding:
    """Judge a row; ``measured`` returns it in float64 without a change and with several, if possible."""
    rtol = limits.tolerance.rtol
    if row.refusal is not None and not _near_limit(row.norm, limits.largest_norm):
        if row.shown:
            return Finding("pass", f"NaN, as it must be where eager refuses: {row.refusal}", rtol)
        return Finding("fail", f"eager refuses this input and the artifact does not: {row.refusal}", rtol)
    odd = _not_finite(row, limits)
    if odd is not None:
        return odd
    if row.truth is None:
        return Finding("pass", "finite", rtol)
    return _whole_numbers(row, rtol, measured) if row.whole else _values(row, limits, measured)


def _near_limit(norm: float, largest: float | None) -> bool:
    """Both bounds of ‖S‖, eager's and the graph's, are upper bounds: up to NORM_SLACK times ‖S‖ itself."""
    return largest is not None and largest / NORM_SLACK < norm <= largest


def _not_finite(row: Row, limits: RowLimits) -> Finding | None:
    """The finding on NaN and Inf on either side; None if the row can be compared value by value."""
    rtol, broken = limits.tolerance.rtol, ~np.isfinite(row.artifact)
    expected = np.zeros_like(broken) if row.truth is None or row.refusal else ~np.isfinite(row.truth)
    if expected.any():
        wrong = int(np.count_nonzero(expected & ~broken))
        if wrong and limits.reference_norm is not None and NORM_SLACK * row.norm > limits.reference_norm:
            said = f"‖S‖ is up to {row.norm:.3g}, and the reference is exported for {limits.reference_norm:.3g}"
            return Finding("undecided", f"only the reference returns NaN: {said}", rtol)
        if wrong:
            return Finding("fail", f"{wrong} of {broken.size} values are finite, expected NaN", rtol)
        if expected.all():
            others = "the reference returns" if row.oracle is None else "float64 and eager return"
            return Finding("pass", f"NaN, as it must be: {others} it, too", rtol)
    missing = int(np.count_nonzero(broken & ~expected))
    if not missing:
        return None
    largest = limits.largest_norm
    if largest is not None and NORM_SLACK * row.norm > largest:
        said = f"‖S‖ is up to {row.norm:.3g}, and it is exported for {largest:.3g}"
        return Finding("pass", f"NaN, as it must be: {said}", rtol)
    if row.oracle is not None and row.eager is not None and not np.isfinite(row.eager).all():
        reason = "eager in this precision returns NaN or Inf, too, where float64 does not: this input is beyond it"
        return Finding("undecided", reason, rtol)
    return Finding("fail", f"{missing} of {broken.size} values are NaN or Inf", rtol)


def _whole_numbers(row: Row, rtol: float, measured: Measured) -> Finding:
    assert row.truth is not None
    expected = row.truth if row.eager is None else row.eager
    differ = row.artifact != expected
    if not differ.any():
        return Finding("pass", "the same whole numbers", rtol, 0.0)
    reason = f"{int(np.count_nonzero(differ))} of {differ.size} values differ, and they have no tolerance"
    runs = measured()
    if runs is not None and all((run != runs[0])[differ].any() for run in runs[1:]):
        return Finding("undecided", f"{reason}; but a change as large as rounding changes them, too", rtol)
    return Finding("fail", reason, rtol)


def _values(row: Row, limits: RowLimits, measured: Measured) -> Finding:
    assert row.truth is not None
    tolerance, use = limits.tolerance, np.isfinite(row.truth)
    error = _distance(row.artifact, row.truth, use, tolerance)
    absolute = f" plus an absolute {tolerance.atol:.2g}" if tolerance.atol else ""
    reason = f"relative error {error:.2g}, tolerance {tolerance.rtol:.2g}{absolute}"
    if error <= tolerance.rtol or limits.strict:
        return Finding("pass" if error <= tolerance.rtol else "fail", reason, tolerance.rtol, error)
    theirs = _eager_distance(row, use, tolerance)
    if theirs is not None:
        reason = f"{reason}; eager's own distance from float64 is {theirs:.2g}"
        if error <= EAGER_SHARE * theirs <= NO_DIGITS_LEFT:
            return Finding("pass", reason, tolerance.rtol, error)
    runs = measured()
    moves = 0.0 if runs is None else max(_distance(run, runs[0], use, tolerance) for run in runs[1:])
    verdict, more = _explained(error, max(EAGER_SHARE * (theirs or 0.0), moves), moves)
    if verdict == "undecided" and not _plausible(row, runs or ()):
        verdict, more = "fail", "this input has no digits to compare, but its magnitude is not that of such answers"
    return Finding(verdict, f"{reason}; {more}", tolerance.rtol, error)


def _explained(error: float, limit: float, moves: float) -> tuple[Verdict, str]:
    if error <= min(limit, NO_DIGITS_LEFT):
        return "pass", f"rounding is amplified on this input, and explains up to {limit:.2g}"
    if limit > NO_DIGITS_LEFT:
        if error <= UNDECIDED_FACTOR * limit:
            return "undecided", f"rounding alone makes {limit:.2g} on this input: it has no digits to compare"
        return "fail", f"rounding makes {limit:.2g} on this input, which leaves no digits, but does not explain this"
    known = "" if moves else ", and how much this model amplifies it could not be measured"
    return "fail", f"rounding explains up to {limit:.2g}{known}"


def _distance(actual: Values, expected: Values, use: NDArray[np.bool_], tolerance: Tolerance) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        distance = float(np.max(np.abs(actual - expected)[use]))
    error = tolerance.needed(distance, float(np.max(np.abs(expected[use]))))
    return error if np.isfinite(error) else np.inf


def _eager_distance(row: Row, use: NDArray[np.bool_], tolerance: Tolerance) -> float | None:
    """Eager's distance from float64; None if eager is missing, refused or overflowed: then it explains nothing."""
    if row.oracle is None or row.eager is None or not np.isfinite(row.eager[use]).all():
        return None
    return _distance(row.eager, row.oracle, use, tolerance)


def _plausible(row: Row, runs: Sequence[NDArray[Any]]) -> bool:
    """True if the row is about as large as the answers of eager, of float64, and of float64 after a change."""
    parties = [row.eager, row.oracle, *runs]
    sizes = [_size(party) for party in parties if party is not None and np.isfinite(party).all()]
    size = _size(row.artifact[np.isfinite(row.artifact)])
    return not sizes or min(sizes) / UNDECIDED_FACTOR <= size <= UNDECIDED_FACTOR * max(sizes)


def _size(values: NDArray[Any]) -> float:
    return float(np.max(np.abs(values))) if values.size else 0.0
