"""A comparison fails for every reason it should, and says which."""

from __future__ import annotations

import re

import numpy as np
import pytest

from osa_runtime.parity import compare, relative_tolerance

ONES = np.ones(4, dtype=np.float32)


def test_equal_outputs_pass() -> None:
    assert compare(ONES, ONES.copy(), 0.0)


@pytest.mark.parametrize(
    ("actual", "reason"),
    [
        (ONES.astype(np.float64), "type float64, expected float32"),
        (np.ones(5, dtype=np.float32), r"shape \(5,\), expected \(4,\)"),
        (np.array([1, np.nan, 1, 1], dtype=np.float32), "1 of 4 values of the output are NaN or Inf"),
        (np.array([1, np.inf, 1, 1], dtype=np.float32), "1 of 4 values of the output are NaN or Inf"),
        (ONES * np.float32(1.1), "relative error 0.1, tolerance 0.01"),
    ],
    ids=["type", "shape", "nan", "inf", "value"],
)
def test_failures_say_why(actual: np.ndarray, reason: str) -> None:
    result = compare(actual, ONES, 0.01)
    assert not result

    assert re.search(reason, result.reason)


def test_nan_on_both_sides_fails() -> None:
    broken = np.full(3, np.nan, dtype=np.float32)
    assert not compare(broken, broken, 1.0)


def test_the_needed_tolerance_is_reported() -> None:
    result = compare(ONES * np.float32(1.5), ONES, 0.1)
    assert compare(ONES * np.float32(1.5), ONES, result.error)


def test_tolerances_grow_with_depth_and_type() -> None:
    assert relative_tolerance("onnx", "fp32", 2) < relative_tolerance("onnx", "fp32", 20)
    assert relative_tolerance("onnx", "fp32", 2) < relative_tolerance("onnx", "fp16", 2)
