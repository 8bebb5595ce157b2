"""The wide sweep goes everywhere that it says, and stays within what the model takes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.parity.feeds import SERVED, Planned, essential, further
from osa_runtime.pixels import Standardisation
from osa_runtime.serving.settings import BatchSettings

MASK = TensorSpec("mask", "bool", ("batch", "tokens"))
FEATURES = Interface(
    (TensorSpec("x", "float32", ("batch", "tokens", 5)), MASK), axes={"tokens": {"min": 1, "max": 200}}
)
WORDS = Interface(
    (TensorSpec("tokens", "int64", ("batch", "tokens")), MASK),
    axes={"tokens": {"min": 1, "max": 2000}},
    values={"tokens": {"min": 0, "max": 8999}},
)
PIXELS = Standardisation((5.0,), (2.0,), (0.0, 16.0))
IMAGES = Interface((TensorSpec("images", "float32", ("batch", 1, 8, 8)),), pixels={"images": PIXELS})
MIDDLE = {"batch": 2, "tokens": 16}


def whole(interface: Interface, middle: dict[str, int], width: int = 8) -> list[Planned]:
    return essential(interface, middle, 0, grid=True) + further(interface, middle, width, 0)


def test_batches_go_beyond_what_the_server_makes() -> None:
    assert BatchSettings().max_batch == SERVED
    assert max(one.sizes["batch"] for one in essential(IMAGES, {"batch": 2}, 0, grid=True)) == SERVED + 1
    assert {one.sizes["batch"] for one in whole(IMAGES, {"batch": 2})} >= set(range(1, SERVED + 2))


def test_lengths_meet_every_threshold_and_the_longest() -> None:
    lengths = {one.sizes["tokens"] for one in whole(WORDS, MIDDLE)}
    assert lengths >= {1, 2, 3, 15, 16, 17, 1023, 1024, 1025, 2000}
    ordered = sorted(lengths)
    assert all(b <= 1.5 * a + 1 for a, b in itertools.pairwise(ordered))


def test_every_id_is_there() -> None:
    cases = [one.case(WORDS) for one in whole(WORDS, MIDDLE) if one.kind.startswith("ids ")]
    assert set(np.concatenate([case.feeds["tokens"].reshape(-1) for case in cases])) == set(range(9000))


@pytest.mark.parametrize("kind", ["padded", "left", "first", "holes", "poisoned", "empty"])
def test_padding_is_where_it_says(kind: str) -> None:
    feeds = Planned(kind, {"batch": 3, "tokens": 40}, 1).case(FEATURES).feeds
    mask, x = feeds["mask"], feeds["x"]
    assert not mask.all()
    assert mask.any(1).all() == (kind != "empty")
    assert np.isfinite(x[mask]).all()
    assert np.isnan(x[~mask]).all() == (kind == "poisoned")
    jumps = np.diff(mask.astype(int), axis=1)
    assert {"padded": (jumps <= 0).all(), "left": (jumps >= 0).all()}.get(kind, True)
    assert kind not in ("holes", "poisoned") or (mask[:, 0].all() and mask[:, -1].all() and (jumps < 0).any(1).all())
    assert kind != "first" or (not mask[:, 0].any() and mask[:, 1:].all())


def test_drawings_are_sparse_and_both_are_standardised() -> None:
    black, white = -2.5, 5.5
    for kind, dark in (("pixels", 0.0), ("strokes", 0.5)):
        images = Planned(kind, {"batch": 4}, 0).case(IMAGES).feeds["images"]
        assert images.shape == (4, 1, 8, 8)
        assert black <= images.min() <= images.max() <= white
        assert (np.isclose(images, black).mean() > dark) == (kind == "strokes")


def test_broken_rows_are_two_of_three() -> None:
    broken = next(one for one in essential(FEATURES, MIDDLE, 0, grid=True) if one.kind == "broken")
    x = broken.case(FEATURES).feeds["x"]
    assert [bool(np.isfinite(row).all()) for row in x] == [False, False, True]


@st.composite
def ranges(draw: Any) -> dict[str, dict[str, int]]:
    found = {}
    for axis in ("batch", "tokens"):
        least = draw(st.integers(1, 5))
        found[axis] = {"min": least, "max": least + draw(st.integers(0, 60))}
    return found


@settings(max_examples=25)
@given(ranges(), st.sampled_from([FEATURES.inputs, WORDS.inputs]), st.booleans())
def test_every_planned_case_fits(axes: dict[str, dict[str, int]], inputs: Any, grid: bool) -> None:
    interface = Interface(inputs, axes=axes, values={"tokens": {"min": 0, "max": 20}})
    middle = {axis: limits["min"] for axis, limits in axes.items()}
    plan = essential(interface, middle, 0, grid=grid) + further(interface, middle, 8, 0)
    assert len({(one.kind, *one.sizes.values()) for one in essential(interface, middle, 0, grid=grid)}) <= len(plan)
    for one in plan[::7]:
        case = one.case(interface)
        for spec in inputs:
            assert case.feeds[spec.name].dtype == spec.dtype
            assert case.feeds[spec.name].shape[:2] == (case.sizes["batch"], case.sizes["tokens"])
        assert all(axes[axis]["min"] <= size <= axes[axis]["max"] for axis, size in case.sizes.items())
