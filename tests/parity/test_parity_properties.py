"""Properties of comparisons, over shapes, magnitudes, types and places of NaN and Inf."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from osa_runtime.parity import Tolerance, compare_arrays, measure

DTYPES = st.sampled_from([np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=5)
TOLERANCES = st.floats(0, 10, allow_nan=False)
quick = settings(max_examples=200)


def finite(dtype: np.dtype[Any], shape: Any) -> st.SearchStrategy[np.ndarray]:
    values = st.floats(allow_nan=False, allow_infinity=False, width=8 * dtype.itemsize)  # type: ignore[arg-type]
    return hnp.arrays(dtype, shape, elements=values)


@st.composite
def pairs(draw: Any) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of one shape and type: unrelated, or close to each other."""
    dtype, shape = draw(DTYPES), draw(SHAPES)
    expected = draw(finite(dtype, shape))
    if draw(st.booleans()):
        return draw(finite(dtype, shape)), expected
    return np.asarray(expected * draw(st.floats(0.99, 1.0)), dtype), expected


@quick
@given(DTYPES.flatmap(lambda d: finite(d, SHAPES)))
def test_everything_equals_itself(x: np.ndarray) -> None:
    result = compare_arrays(x, x.copy(), 0.0)
    assert result
    assert result.error == 0.0


@quick
@given(pairs(), TOLERANCES, TOLERANCES)
def test_a_wider_tolerance_never_fails_what_a_narrower_one_passed(
    pair: tuple[np.ndarray, np.ndarray], first: float, second: float
) -> None:
    narrow, wide = sorted((first, second))
    assert bool(compare_arrays(*pair, narrow)) <= bool(compare_arrays(*pair, wide))
    assert bool(compare_arrays(*pair, Tolerance(0.01, narrow))) <= bool(compare_arrays(*pair, Tolerance(0.01, wide)))


@quick
@given(pairs(), st.sampled_from([0.0, 1e-3, 1.0]))
def test_the_error_is_exactly_the_tolerance_that_is_needed(pair: tuple[np.ndarray, np.ndarray], atol: float) -> None:
    error = compare_arrays(*pair, Tolerance(0.0, atol)).error
    assume(math.isfinite(error))
    assert compare_arrays(*pair, Tolerance(error, atol))
    if error > 0:
        assert not compare_arrays(*pair, Tolerance(np.nextafter(error, 0.0), atol))


@quick
@given(pairs())
def test_distance_is_symmetric(pair: tuple[np.ndarray, np.ndarray]) -> None:
    there, back = measure(*pair), measure(*pair[::-1])
    assert there.max_abs == back.max_abs
    assert math.isclose(there.cosine, back.cosine, abs_tol=1e-12)
    assert bool(compare_arrays(*pair, 0.0)) == bool(compare_arrays(*pair[::-1], 0.0))


@quick
@given(pairs())
def test_metrics_are_in_range_and_agree_with_slow_definitions(pair: tuple[np.ndarray, np.ndarray]) -> None:
    found = measure(*pair)
    a, b = ([float(x) for x in array.ravel()] for array in pair)
    slow = max(abs(x - y) for x, y in zip(a, b, strict=True))
    assert found.max_abs == slow
    assert -1.0 <= found.cosine <= 1.0
    assert 0.0 <= found.ulp_p50 <= found.ulp_p99 <= found.ulp_max
    assert not any(math.isnan(x) for x in dataclasses.astuple(found) if x is not None)
    top = max(map(abs, b))
    if top and math.isfinite(slow / top):
        assert math.isclose(found.max_rel, slow / max(top, np.finfo(np.float64).tiny), rel_tol=1e-12)
    if min((abs(x) for x in (*a, *b) if x), default=0.0) > 1e-100 and max(map(abs, (*a, *b))) < 1e100:
        _check_sums(found.rms, found.cosine, a, b)


def _check_sums(rms: float, cosine: float, a: list[float], b: list[float]) -> None:
    squares = math.fsum(y * y for y in b)
    distance = math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    if squares:
        assert math.isclose(rms, math.sqrt(distance / squares), rel_tol=1e-9)
    lengths = math.sqrt(math.fsum(x * x for x in a)) * math.sqrt(squares)
    if lengths:
        inner = math.fsum(x * y for x, y in zip(a, b, strict=True))
        assert math.isclose(cosine, inner / lengths, rel_tol=1e-6, abs_tol=1e-9)


@quick
@given(pairs(), st.data(), st.sampled_from([np.nan, np.inf, -np.inf]), st.sampled_from(["output", "reference", "both"]))
def test_nan_and_inf_fail_wherever_they_are(
    pair: tuple[np.ndarray, np.ndarray], data: st.DataObject, poison: float, side: str
) -> None:
    actual, expected = (array.copy() for array in pair)
    place = tuple(data.draw(st.integers(0, size - 1)) for size in actual.shape)
    for name, array in (("output", actual), ("reference", expected)):
        if side in (name, "both"):
            array[place] = poison
    result = compare_arrays(actual, expected, 1e300)
    assert not result
    assert result.error == np.inf
    assert result.metrics is None
    assert "NaN or Inf" in result.reason


@quick
@given(pairs(), SHAPES, DTYPES)
def test_another_shape_or_type_fails(
    pair: tuple[np.ndarray, np.ndarray], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> None:
    _, expected = pair
    other = np.zeros(shape, expected.dtype)
    if shape != expected.shape:
        assert "shape" in compare_arrays(other, expected, 1e300).reason
        assert not compare_arrays(other, expected, 1e300)
    if dtype != expected.dtype:
        retyped = np.zeros(expected.shape, dtype)
        assert not compare_arrays(retyped, expected, 1e300)
        assert compare_arrays(retyped, np.zeros(expected.shape, expected.dtype), 0.0, same_type=False)


@quick
@given(hnp.arrays(st.sampled_from([np.int64, np.uint8, np.bool_]), SHAPES), st.data())
def test_whole_numbers_have_to_be_equal(x: np.ndarray, data: st.DataObject) -> None:
    other = x.copy()
    place = tuple(data.draw(st.integers(0, size - 1)) for size in x.shape)
    other[place] = not x[place] if x.dtype == np.bool_ else x[place] ^ x.dtype.type(1)
    assert compare_arrays(x, x.copy(), 0.0)
    result = compare_arrays(other, x, 1e300)
    assert not result
    assert f"1 of {x.size} values differ" in result.reason
