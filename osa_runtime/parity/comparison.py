"""The comparison of one output with its expected value: the tolerance, the measured differences, the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Metrics:
    """``max_rel`` and ``rms`` are relative to the largest magnitude and to the RMS of the expected values; ``max_rel``
    by row, where there are rows, so that large ones do not hide faults in small ones.

    ULPs are those of the actual values' own type at the largest expected magnitude of its last axis: between values
    near zero the number of representable numbers says nothing about a sum that passed through large ones.
    ``top1`` is the share of rows whose largest entry is at the same place; None without classes.
    """

    max_abs: float
    max_rel: float
    rms: float
    cosine: float
    ulp_p50: float
    ulp_p99: float
    ulp_max: float
    top1: float | None = None


def measure(actual: NDArray[Any], expected: NDArray[Any], *, classes: bool = False, by_row: bool = False) -> Metrics:
    """Measure two finite arrays of one shape, not empty; with ``classes``, the last axis holds logits.

    With ``by_row``, the first axis holds independent rows.
    """
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(over="ignore"):  # at the end of float64 a distance is infinite, which fails
        difference = np.abs(a - b)
        rows = (len(b) if by_row and b.ndim else 1, -1)
        largest = np.maximum(np.abs(b).reshape(rows).max(1), TINY)
        max_rel = float((difference.reshape(rows).max(1) / largest).max())
        ulps = np.minimum(difference / _spacing(b, actual.dtype), np.finfo(np.float64).max)
    return Metrics(
        max_abs=float(difference.max()),
        max_rel=max_rel,
        rms=float(_rms(difference) / max(_rms(b), TINY)),
        cosine=_cosine(a.ravel(), b.ravel()),
        ulp_p50=float(np.percentile(ulps, 50)),
        ulp_p99=float(np.percentile(ulps, 99)),
        ulp_max=float(ulps.max()),
        top1=float(np.mean(a.argmax(-1) == b.argmax(-1))) if classes and b.ndim > 1 else None,
    )


def _rms(x: NDArray[np.float64]) -> float:
    """The RMS of values of any size, whose squares might overflow or underflow float64."""
    top = float(np.max(np.abs(x)))
    return top * float(np.sqrt(np.mean(np.square(x / top)))) if 0.0 < top < np.inf else top


def _cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    if not a.any() or not b.any():
        return 1.0 if not a.any() and not b.any() else 0.0
    a, b = a / np.max(np.abs(a)), b / np.max(np.abs(b))
    return float(np.clip(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)), -1.0, 1.0))


def _spacing(expected: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[np.float64]:
    """The distance of neighbouring numbers at the largest magnitude of each row."""
    kind = dtype if dtype.kind == "f" else np.dtype(np.float64)
    rows = np.abs(expected).max(axis=-1, keepdims=True) if expected.ndim else np.abs(expected)
    last = np.nextafter(np.finfo(kind).max, kind.type(0))  # the largest number has no neighbour above
    limited = np.clip(rows, float(np.finfo(kind).tiny), float(last))
    return np.spacing(limited.astype(kind)).astype(np.float64)


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


def compare_arrays(
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
