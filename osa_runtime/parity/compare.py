"""Compare one output with what it should be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Comparison:
    """True when the output passed. ``error`` is also the tolerance that would have been needed."""

    passed: bool
    error: float
    tolerance: float
    reason: str

    def __bool__(self) -> bool:
        return self.passed


def compare(actual: NDArray[np.generic], expected: NDArray[np.generic], tolerance: float) -> Comparison:
    """Type, shape, finite values, then max|actual − expected| / max|expected|, subtracted in float64."""
    if actual.dtype != expected.dtype:
        return Comparison(False, np.inf, tolerance, f"type {actual.dtype}, expected {expected.dtype}")
    if actual.shape != expected.shape:
        return Comparison(False, np.inf, tolerance, f"shape {actual.shape}, expected {expected.shape}")
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    for name, values in (("output", a), ("reference", b)):
        broken = int(np.count_nonzero(~np.isfinite(values)))
        if broken:
            return Comparison(
                False, np.inf, tolerance, f"{broken} of {values.size} values of the {name} are NaN or Inf"
            )
    error = float(np.max(np.abs(a - b)) / max(float(np.max(np.abs(b))), np.finfo(np.float64).tiny))
    reason = f"relative error {error:.2g}, tolerance {tolerance:.2g}"
    return Comparison(error <= tolerance, error, tolerance, reason)
