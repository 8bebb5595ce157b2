"""Each thing that can be wrong with an input has its own message, which says what was received and expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osa_runtime.errors import InputError
from osa_runtime.interface import ANY_DTYPE, ANY_SHAPE, Interface, TensorSpec
from osa_runtime.runtime.input_checks import QuickCheck, check_finite_inputs, check_inputs, describe_nonfinite

TOKENS, MASK = np.zeros((2, 5), np.int64), np.ones((2, 5), bool)
SEQUENCE = Interface(
    (TensorSpec("tokens", "int64", ("batch", "tokens")), TensorSpec("mask", "bool", ("batch", "tokens"))),
    (TensorSpec("logits", "float32", ("batch", 3)),),
    {"tokens": {"max": 64}, "batch": {"min": 2}},
)
IMAGE = Interface((TensorSpec("images", "float32", ("batch", 1, 8, 8)),), ())

WRONG: dict[str, tuple[Interface, Any, str]] = {
    "no mapping": (IMAGE, [1.0], "Expected a mapping from input names to arrays, got list"),
    "missing": (SEQUENCE, {"tokens": TOKENS}, r"Missing input mask; the model takes tokens: int64\[batch, tokens\]"),
    "unexpected": (IMAGE, {"image": 0}, "Unexpected input 'image'.* Did you mean images"),
    "type": (
        SEQUENCE,
        {"tokens": TOKENS.astype(np.int32), "mask": MASK},
        r"tokens is of type int32, expected int64; cast it with tokens\.astype\('int64'\)",
    ),
    "byte order": (IMAGE, {"images": np.zeros((1, 1, 8, 8), ">f4")}, "is of type >f4, expected float32"),
    "text": (IMAGE, {"images": "seven"}, "not an array of numbers"),
    "ragged": (IMAGE, {"images": [[1.0], [1.0, 2.0]]}, "cannot be made an array"),
    "rank": (
        IMAGE,
        {"images": np.zeros((1, 8, 8), np.float32)},
        r"shape \(1, 8, 8\), of rank 3, expected rank 4.*Add the axis batch with images\[None\]",
    ),
    "fixed axis": (IMAGE, {"images": np.zeros((1, 1, 8, 9), np.float32)}, "has size 9 on axis 3, expected 8"),
    "named axes": (
        SEQUENCE,
        {"tokens": TOKENS, "mask": MASK[:, :4]},
        r"mask has size 4 on axis 1 \(tokens\), but tokens has 5 on its axis tokens",
    ),
    "empty": (SEQUENCE, {"tokens": TOKENS[:, :0], "mask": MASK}, r"size 0 on axis 1 \(tokens\), expected at least 1"),
    "too few": (SEQUENCE, {"tokens": TOKENS[:1], "mask": MASK[:1]}, r"size 1 on axis 0 \(batch\), expected at least 2"),
    "too long": (
        SEQUENCE,
        {"tokens": np.zeros((2, 65), np.int64), "mask": np.ones((2, 65), bool)},
        r"size 65 on axis 1 \(tokens\), expected at most 64",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case: str) -> None:
    interface, feeds, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        check_inputs(feeds, interface)
    assert not QuickCheck(interface).passes(feeds)


def test_the_quick_check_leaves_all_but_plain_arrays_to_the_full_one() -> None:
    image = np.zeros((1, 1, 8, 8), np.float32)
    quick = QuickCheck(IMAGE)
    assert quick.passes({"images": image})
    assert not quick.passes({"images": image.tolist()})
    assert not quick.passes({"images": np.ma.masked_array(image)})
    assert not quick.passes({})
    undeclared = Interface((TensorSpec("x", ANY_DTYPE, ANY_SHAPE),), ())
    assert not QuickCheck(undeclared).passes({"x": image})
    assert not QuickCheck(undeclared).passes({})


def test_arrays_come_in_the_order_of_the_model() -> None:
    assert list(check_inputs({"mask": MASK, "tokens": TOKENS}, SEQUENCE)) == ["tokens", "mask"]


def test_what_a_model_does_not_declare_is_not_checked() -> None:
    specs = (TensorSpec("x", ANY_DTYPE, ANY_SHAPE), TensorSpec("y", ANY_DTYPE, ANY_SHAPE))
    assert list(check_inputs({"x": [1, 2]}, Interface(specs, (), optional=frozenset({"y"})))) == ["x"]


def test_values_that_are_not_finite_are_counted_and_located() -> None:
    array = np.array([[0.0, 1.0], [np.nan, -np.inf]])
    assert describe_nonfinite(array) == "2 NaN or Inf of 4 values, the first at (1, 0)"
    assert describe_nonfinite(np.arange(3)) is None
    with pytest.raises(InputError, match=r"Input x holds 2 NaN or Inf of 4 values"):
        check_finite_inputs({"x": array})


AXES = st.one_of(st.integers(1, 4), st.sampled_from(["batch", "tokens"]))


@given(
    spec=st.lists(st.lists(AXES, max_size=4), min_size=1, max_size=3),
    data=st.data(),
    limit=st.integers(1, 4),
)
def test_a_shape_passes_exactly_when_it_fits(spec: list[list[int | str]], data: st.DataObject, limit: int) -> None:
    interface = Interface(
        tuple(TensorSpec(f"x{i}", "float32", tuple(shape)) for i, shape in enumerate(spec)),
        (),
        {"tokens": {"max": limit}},
    )
    sizes = data.draw(st.fixed_dictionaries({"batch": st.integers(1, 3), "tokens": st.integers(1, limit)}))
    shapes = [[axis if isinstance(axis, int) else sizes[axis] for axis in shape] for shape in spec]
    feeds = {f"x{i}": np.zeros(shape, np.float32) for i, shape in enumerate(shapes)}
    assert list(check_inputs(feeds, interface)) == list(feeds)
    quick = QuickCheck(interface)
    assert quick.passes(feeds)
    changed = data.draw(st.sampled_from([i for i, shape in enumerate(shapes) if shape] or [None]))
    if changed is None:
        return
    axis = data.draw(st.integers(0, len(shapes[changed]) - 1))
    name = spec[changed][axis]
    alone = sum(shape.count(name) for shape in spec) == 1 and isinstance(name, str)
    wrong = 0 if alone else shapes[changed][axis] + data.draw(st.integers(1, 3))
    shapes[changed][axis] = wrong
    feeds = {f"x{i}": np.zeros(shape, np.float32) for i, shape in enumerate(shapes)}
    with pytest.raises(InputError, match=f"x{changed}" if isinstance(name, int) else "size"):
        check_inputs(feeds, interface)
    assert not quick.passes(feeds)
