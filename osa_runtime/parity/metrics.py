"""The distance of two arrays in several measures, all taken in float64."""

from __future__ import annotations

import dataclasses
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

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


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
