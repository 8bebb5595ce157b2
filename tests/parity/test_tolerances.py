"""The one table of tolerances: complete, growing with what makes rounding worse, and never beyond sense."""

from __future__ import annotations

import itertools

import pytest

from osa_runtime.formats import FORMATS
from osa_runtime.parity.tolerances import (
    EPS,
    FACTORS,
    HARMLESS_NORM,
    NO_DIGITS_LEFT,
    core_tolerance,
    relative_tolerance,
    rounding_move,
    rounding_move_of_inputs,
)

QUANTIZED = ("w8", "w8a8")  # ONNX alone can be quantised
ENTRIES = [*itertools.product(FORMATS, ("fp32", "fp16")), *(("onnx", dtype) for dtype in QUANTIZED)]


def test_every_format_and_type_has_an_entry() -> None:
    assert set(FACTORS) == set(ENTRIES)


@pytest.mark.parametrize(("kind", "dtype"), ENTRIES)
def test_it_is_a_small_multiple_of_eps(kind: str, dtype: str) -> None:
    assert EPS[dtype] <= relative_tolerance(kind, dtype, 0) <= 32 * EPS[dtype]


@pytest.mark.parametrize(("kind", "dtype"), ENTRIES)
def test_it_grows_with_the_root_of_the_depth(kind: str, dtype: str) -> None:
    assert relative_tolerance(kind, dtype, 3) == pytest.approx(2 * relative_tolerance(kind, dtype, 0))


def test_small_norms_change_nothing_and_large_ones_scale() -> None:
    base = relative_tolerance("onnx", "fp32", 8)
    assert relative_tolerance("onnx", "fp32", 8, HARMLESS_NORM) == base
    assert relative_tolerance("onnx", "fp32", 8, 3 * HARMLESS_NORM) == pytest.approx(3 * base)


@pytest.mark.parametrize("norm", [1e3, 1e7, 1e30, float("inf")])
@pytest.mark.parametrize("dtype", EPS)
def test_no_norm_and_no_depth_excuses_more_than_a_lost_result(dtype: str, norm: float) -> None:
    """A tolerance of 1 would pass anything."""
    assert relative_tolerance("onnx", dtype, 1000, norm) <= NO_DIGITS_LEFT
    assert core_tolerance(dtype, norm) <= NO_DIGITS_LEFT


def test_half_precision_of_a_core_is_one_rounding() -> None:
    assert core_tolerance("fp16", 1.0) == core_tolerance("fp32", 1.0) + EPS["fp16"]


def test_what_rounding_changes_grows_with_eps() -> None:
    assert rounding_move("fp32") == pytest.approx(16 * 2.0**-24)
    assert rounding_move("fp16") / rounding_move("fp32") == pytest.approx(2.0**13)
    assert rounding_move("w8") == pytest.approx(2.0**-7)
    assert rounding_move_of_inputs(2.0**-23, 3) == pytest.approx(8 * 2.0**-24)
