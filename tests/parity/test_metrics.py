"""Metrics against definitions written out by hand, and at the ends of each type."""

from __future__ import annotations

import math

import numpy as np
import pytest

from osa_runtime.parity import Metrics, compare, measure

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
    assert not compare(np.array([largest], dtype), np.array([-largest], dtype), 1.0)


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
    assert compare(zero, zero, 0.0)
    assert not compare(one, zero, 1.0)


def test_a_scalar() -> None:
    assert measure(np.float32(2.5), np.float32(2.0)).max_rel == 0.25  # type: ignore[arg-type]


def test_every_metric_is_a_plain_number() -> None:
    found = measure(np.ones((2, 3), np.float16), np.ones((2, 3), np.float16), classes=True).as_dict()
    assert set(found) == set(Metrics.__dataclass_fields__)
    assert all(type(value) is float for value in found.values())
