"""Compare one output with what it should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.parity.metrics import TINY, Metrics, measure


@dataclass(frozen=True)
class Tolerance:
    """|actual − expected| ≤ atol + rtol·max|expected| for every entry."""

    rtol: float
    atol: float = 0.0

    def allowed(self, largest: float) -> float:
        return self.atol + self.rtol * largest

    def needed(self, max_abs: float, largest: float) -> float:
        """The rtol that would have been enough together with this atol."""
        return max(0.0, max_abs - self.atol) / max(largest, TINY)


@dataclass(frozen=True)
class Comparison:
    """True when the output passed. ``error`` is also the tolerance that would have been needed.

    ``metrics`` is None if there is nothing to measure: another shape or type, NaN, Inf, or no values at all.
    """

    passed: bool
    error: float
    tolerance: float
    reason: str
    metrics: Metrics | None = None

    def __bool__(self) -> bool:
        return self.passed


def compare(
    actual: NDArray[Any],
    expected: NDArray[Any],
    tolerance: float | Tolerance,
    *,
    same_type: bool = True,
    classes: bool = False,
) -> Comparison:
    """Compare type, shape, finite values, then max|actual − expected|, in float64, with the tolerance.

    Whole numbers and booleans have to be equal: they are indices and decisions, not measurements.
    """
    wanted = tolerance if isinstance(tolerance, Tolerance) else Tolerance(tolerance)
    reason = _mismatch(actual, expected, same_type)
    if reason is not None:
        return Comparison(False, np.inf, wanted.rtol, reason)
    if actual.size == 0:
        return Comparison(True, 0.0, wanted.rtol, "no values")
    if actual.dtype.kind in "biu" and not np.array_equal(actual, expected):
        reason = (
            f"{int(np.count_nonzero(actual != expected))} of {actual.size} values differ, and they have no tolerance"
        )
        return Comparison(False, np.inf, wanted.rtol, reason)
    metrics = measure(actual, expected, classes=classes)
    largest = float(np.max(np.abs(expected.astype(np.float64))))
    error = wanted.needed(metrics.max_abs, largest)
    absolute = f" plus an absolute {wanted.atol:.2g}" if wanted.atol else ""
    reason = f"relative error {error:.2g}, tolerance {wanted.rtol:.2g}{absolute}"
    return Comparison(bool(error <= wanted.rtol), error, wanted.rtol, reason, metrics)


def _mismatch(actual: NDArray[Any], expected: NDArray[Any], same_type: bool) -> str | None:
    if same_type and actual.dtype != expected.dtype:
        return f"type {actual.dtype}, expected {expected.dtype}"
    if actual.shape != expected.shape:
        return f"shape {actual.shape}, expected {expected.shape}"
    for name, values in (("output", actual), ("reference", expected)):
        broken = int(np.count_nonzero(~np.isfinite(values.astype(np.float64))))
        if broken:
            return f"{broken} of {values.size} values of the {name} are NaN or Inf"
    return None
