"""Joining and splitting: what shares a batch, what is padded, and that nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest

from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.serving.engine.batch_plan import BatchPlan, Extent


def spec(name: str, dtype: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name, dtype, shape)


IMAGES = Interface((spec("x", "float32", "batch", 4),), (spec("y", "float32", "batch", 2),))
TOKENS = Interface(
    (spec("tokens", "int64", "batch", "tokens"), spec("mask", "bool", "batch", "tokens")),
    (spec("logits", "float32", "batch", 3), spec("hidden", "float32", "batch", "tokens", 5)),
)
NO_MASK = Interface((spec("x", "float32", "batch", "length"),), (spec("y", "float32", "batch", "length"),))


@pytest.mark.parametrize(
    ("interface", "can"),
    [
        (IMAGES, True),
        (TOKENS, True),
        (Interface((spec("x", "float32", 1, 4),), (spec("y", "float32", 1, 2),)), False),
        (Interface((spec("x", "float32", "batch", 4),), (spec("y", "float32"),)), False),
        (Interface((spec("x", "float32", "a", 4), spec("z", "float32", "b")), (spec("y", "float32", "a"),)), False),
    ],
    ids=["images", "tokens", "fixed batch", "output without batch", "two batch axes"],
)
def test_models_batch_only_along_one_dynamic_first_axis(interface: Interface, can: bool) -> None:
    assert BatchPlan(interface).can_batch is can


def test_rows_are_joined_and_split() -> None:
    plan = BatchPlan(IMAGES)
    parts = [{"x": np.full((rows, 4), rows, np.float32)} for rows in (1, 3, 2)]
    extents = [plan.extent(part) for part in parts]
    joined = plan.join(parts, extents)
    assert joined["x"][:, 0].tolist() == [1, 3, 3, 3, 2, 2]
    outputs = plan.split({"y": joined["x"][:, :2]}, extents)
    assert [part["y"].tolist() for part in outputs] == [part["x"][:, :2].tolist() for part in parts]


def test_sequences_are_padded_and_cut_back() -> None:
    plan = BatchPlan(TOKENS)
    parts = [{"tokens": np.full((1, n), n, np.int64), "mask": np.ones((1, n), bool)} for n in (3, 1, 5)]
    extents = [plan.extent(part) for part in parts]
    joined = plan.join(parts, extents)
    assert joined["tokens"].tolist() == [[3, 3, 3, 0, 0], [1, 0, 0, 0, 0], [5] * 5]
    assert joined["mask"].sum(1).tolist() == [3, 1, 5]
    hidden = np.repeat(joined["tokens"][..., None], 5, 2).astype(np.float32)
    cut = plan.split({"logits": np.zeros((3, 3), np.float32), "hidden": hidden}, extents)
    assert [part["hidden"].shape for part in cut] == [(1, 3, 5), (1, 1, 5), (1, 5, 5)]
    assert all((part["hidden"] == n).all() for part, n in zip(cut, (3, 1, 5), strict=True))


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [(3, 5, True), (1, 64, True), (64, 65, True), (100, 200, True), (100, 201, False), (1, 65, False)],
)
def test_padding_is_bounded(first: int, second: int, together: bool) -> None:
    assert Extent(1, first).fits(Extent(1, second)) is together
    assert Extent(1, second).fits(Extent(1, first)) is together


def test_without_a_mask_only_equal_lengths_share_a_batch() -> None:
    plan = BatchPlan(NO_MASK)
    three, four = (plan.extent({"x": np.zeros((1, n), np.float32)}) for n in (3, 4))
    assert not three.fits(four)
    assert three.fits(three)


def test_unaligned_bytes_are_copied() -> None:
    plan = BatchPlan(IMAGES)
    array = np.frombuffer(b"?" + np.arange(4, dtype=np.float32).tobytes(), np.float32, 4, 1).reshape(1, 4)
    joined = plan.join([{"x": array}], [plan.extent({"x": array})])["x"]
    assert joined.flags.aligned
    assert joined.tolist() == [[0, 1, 2, 3]]
