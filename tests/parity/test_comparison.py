"""An output is compared by type, shape, finite values and distance, and the distance is measured in several ways."""

from __future__ import annotations

import math
import re
from dataclasses import asdict

import numpy as np
import pytest

from osa_runtime.parity import Metrics, compare_arrays, measure, relative_tolerance

ONES = np.ones(4, dtype=np.float32)


def test_equal_outputs_pass() -> None:
    assert compare_arrays(ONES, ONES.copy(), 0.0)


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
    result = compare_arrays(actual, ONES, 0.01)
    assert not result

    assert re.search(reason, result.reason)


def test_nan_on_both_sides_fails() -> None:
    broken = np.full(3, np.nan, dtype=np.float32)
    assert not compare_arrays(broken, broken, 1.0)


def test_the_needed_tolerance_is_reported() -> None:
    result = compare_arrays(ONES * np.float32(1.5), ONES, 0.1)
    assert compare_arrays(ONES * np.float32(1.5), ONES, result.error)


def test_tolerances_grow_with_depth_and_type() -> None:
    assert relative_tolerance("onnx", "fp32", 2) < relative_tolerance("onnx", "fp32", 20)
    assert relative_tolerance("onnx", "fp32", 2) < relative_tolerance("onnx", "fp16", 2)


DTYPES = [np.float16, np.float32, np.float64]


def test_a_worked_example() -> None:
    actual = np.array([[1.0, 2.0], [3.0, 5.0]], np.float32)
    expected = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    found = measure(actual, expected, classes=True)
    assert found.max_abs == 1.0
    assert found.max_rel == 0.25
    assert found.rms == pytest.approx(math.sqrt(1 / 4) / math.sqrt(30 / 4))
    assert found.cosine == pytest.approx((1 + 4 + 9 + 20) / math.sqrt(39 * 30))
    assert found.ulp_max == 1.0 / (4 * 2.0**-23)
    assert found.ulp_p50 == 0.0
    assert found.top1 == 1.0


def test_top1_is_the_share_of_rows_with_the_same_winner() -> None:
    expected = np.array([[0.0, 1.0], [1.0, 0.0], [3.0, 2.0], [0.0, 5.0]])
    actual = np.array([[0.0, 1.0], [0.0, 1.0], [3.0, 2.0], [5.0, 0.0]])
    assert measure(actual, expected, classes=True).top1 == 0.5
    assert measure(actual, expected).top1 is None
    assert measure(actual[0], expected[0], classes=True).top1 is None


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
def test_one_ulp_is_one_ulp(dtype: type[np.floating]) -> None:
    expected = np.array([1.0, -3.0, 0.001], dtype)
    actual = expected.copy()
    actual[1] = np.nextafter(expected[1], dtype(0))
    assert measure(actual, expected).ulp_max == 1.0


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
def test_the_largest_numbers_of_a_type(dtype: type[np.floating]) -> None:
    largest = np.finfo(dtype).max
    same = measure(np.array([largest, 1], dtype), np.array([largest, 1], dtype))
    assert (same.max_abs, same.rms, same.cosine, same.ulp_max) == (0.0, 0.0, 1.0, 0.0)
    opposite = measure(np.array([largest], dtype), np.array([-largest], dtype))
    assert opposite.cosine == -1.0
    assert opposite.max_rel >= 2.0
    assert not compare_arrays(np.array([largest], dtype), np.array([-largest], dtype), 1.0)


def test_squares_that_would_vanish_or_overflow() -> None:
    for size in (1e-200, 1e200):
        found = measure(np.array([size, 0.0]), np.array([2 * size, 0.0]))
        assert found.rms == pytest.approx(0.5)
        assert found.cosine == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
def test_zeros(dtype: type[np.floating]) -> None:
    zero, one = np.zeros(3, dtype), np.ones(3, dtype)
    assert measure(zero, zero).cosine == 1.0
    assert measure(zero, one).cosine == 0.0
    assert compare_arrays(zero, zero, 0.0)
    assert not compare_arrays(one, zero, 1.0)


def test_a_scalar() -> None:
    assert measure(np.float32(2.5), np.float32(2.0)).max_rel == 0.25  # type: ignore[arg-type]


def test_every_metric_is_a_plain_number() -> None:
    found = asdict(measure(np.ones((2, 3), np.float16), np.ones((2, 3), np.float16), classes=True))
    assert set(found) == set(Metrics.__dataclass_fields__)
    assert all(type(value) is float for value in found.values())
