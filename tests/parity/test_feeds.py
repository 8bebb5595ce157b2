"""Inputs respect the interface whatever it is, and every kind is what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osa_runtime.errors import InputError
from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.parity.feeds import Case, sweep
from osa_runtime.sample_inputs import FLOAT_KINDS, sample_inputs

FEATURES = Interface(
    (TensorSpec("x", "float32", ("batch", "tokens", 5)), TensorSpec("mask", "bool", ("batch", "tokens")))
)
AXES = st.sampled_from(["batch", "tokens", "other", 1, 2, 3, 4])
SHAPES = st.lists(AXES, max_size=4).map(tuple)
TYPES = st.sampled_from(["float32", "float16", "float64", "int64", "int32", "uint8", "bool"])


@st.composite
def interfaces(draw: Any) -> Interface:
    count = draw(st.integers(1, 3))
    specs = tuple(TensorSpec(f"in/{i}", draw(TYPES), draw(SHAPES)) for i in range(count))
    axes = {}
    for axis in draw(st.sets(st.sampled_from(["batch", "tokens", "other"]))):
        least = draw(st.integers(1, 3))
        axes[axis] = {"min": least, "max": least + draw(st.integers(0, 9))}
    values = {spec.name: {"min": 2, "max": 9} for spec in specs if "int" in spec.dtype and draw(st.booleans())}
    return Interface(specs, axes=axes, values=values)


@settings(max_examples=150)
@given(interfaces(), st.integers(0, 2**32))
def test_every_case_fits_its_interface(interface: Interface, seed: int) -> None:
    cases = list(sweep(interface, seed=seed, width=4))
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert list(case.feeds) == [spec.name for spec in interface.inputs]
        for spec in interface.inputs:
            _check(case, spec, interface)


def _check(case: Case, spec: TensorSpec, interface: Interface) -> None:
    array = case.feeds[spec.name]
    assert array.dtype == spec.dtype
    assert array.shape == tuple(axis if isinstance(axis, int) else case.sizes[axis] for axis in spec.shape)
    for axis, size in case.sizes.items():
        assert interface.least(axis) <= size
        assert size <= (interface.limit(axis) or size)
    limits = interface.values.get(spec.name)
    if limits:
        assert limits["min"] <= array.min()
        assert array.max() <= limits["max"]
    if spec.name == interface.mask:
        assert array.any(-1).all()
    if array.dtype.kind == "f":
        assert np.isfinite(array).all()


def test_the_same_seed_gives_the_same_values_and_another_does_not() -> None:
    first, second, other = (list(sweep(FEATURES, seed=seed)) for seed in (0, 0, 1))
    for a, b in zip(first, second, strict=True):
        assert all(np.array_equal(a.feeds[name], b.feeds[name]) for name in a.feeds)
    assert not np.array_equal(first[0].feeds["x"], other[0].feeds["x"])


def test_all_kinds_come_at_one_size_that_is_neither_one_row_nor_one_token() -> None:
    cases = {case.kind: case for case in sweep(FEATURES)}
    assert set(cases) == {*FLOAT_KINDS, "padded"}
    for kind in set(cases) - {"random"}:
        assert cases[kind].sizes["batch"] == 2
        assert cases[kind].sizes["tokens"] > 1


def test_padding_is_full_rubbish_and_the_rest_untouched() -> None:
    sizes = {"batch": 4, "tokens": 7}
    padded = sample_inputs(FEATURES, sizes, "padded", 3)
    plain = sample_inputs(FEATURES, sizes, "random", 3)
    assert padded["mask"].sum(-1).tolist() == [7, 5, 3, 1]
    real = padded["mask"]
    assert np.array_equal(padded["x"][real], plain["x"][real])
    assert np.abs(padded["x"][~real]).mean() > 10


def test_one_row_is_padded_too() -> None:
    assert sample_inputs(FEATURES, {"batch": 1, "tokens": 7}, "padded", 0)["mask"].sum() == 3
    assert sample_inputs(FEATURES, {"batch": 1, "tokens": 1}, "padded", 0)["mask"].all()


@pytest.mark.parametrize("shape", [(), ("batch",)], ids=["scalar", "one per row"])
def test_a_boolean_without_tokens_is_no_mask(shape: tuple[str, ...]) -> None:
    interface = Interface((TensorSpec("x", "float32", ("batch", 4)), TensorSpec("flag", "bool", shape)))
    assert interface.mask is None
    assert all(case.feeds["flag"].all() for case in sweep(interface))


def test_mixed_rows_differ_by_magnitudes() -> None:
    x = sample_inputs(FEATURES, {"batch": 5, "tokens": 50}, "mixed", 0)["x"]
    sizes = np.sqrt((x**2).mean((1, 2)))
    assert np.all(np.diff(sizes) > 0)
    assert sizes[-1] / sizes[0] > 100


def test_parallel_tokens_are_almost_alike() -> None:
    x = sample_inputs(FEATURES, {"batch": 2, "tokens": 9}, "parallel", 0)["x"]
    assert np.abs(x - x.mean(1, keepdims=True)).max() < 0.1 * np.abs(x).min()


@pytest.mark.parametrize("size", [10**13, 2**62], ids=["memory", "64 bits"])
def test_sizes_that_do_not_fit_into_memory_are_refused(size: int) -> None:
    interface = Interface((TensorSpec("x", "float32", ("batch", 64)),))
    with pytest.raises(InputError, match="do not fit into memory"):
        sample_inputs(interface, {"batch": size}, "random", 0)
