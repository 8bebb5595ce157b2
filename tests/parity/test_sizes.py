"""The sizes of a sweep: within what each axis takes, and refused where they were asked for and do not fit."""

from __future__ import annotations

import pytest

from osa_runtime.errors import InputError
from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.parity.feeds import all_sizes

IMAGES = Interface((TensorSpec("images", "float32", ("batch", 1, 8, 8)),))
SEQUENCE = Interface(
    (TensorSpec("tokens", "int64", ("batch", "tokens")), TensorSpec("mask", "bool", ("batch", "tokens"))),
    axes={"batch": {"min": 1}, "tokens": {"min": 1, "max": 40}},
)
UNBATCHED = Interface((TensorSpec("x", "float32", ("tokens", 4)),))
FIXED_ROWS = Interface((TensorSpec("x", "float32", (3, "tokens", 4)),))
STATIC = Interface((TensorSpec("x", "float32", (1, 4)),))
NARROW = Interface(SEQUENCE.inputs, axes={"batch": {"min": 2, "max": 4}, "tokens": {"min": 3, "max": 9}})


def test_images_get_several_batches() -> None:
    assert all_sizes(IMAGES, None, None, None) == [{"batch": 1}, {"batch": 2}, {"batch": 5}]


def test_sequences_get_one_token_both_sides_of_2d_and_the_longest() -> None:
    sizes = all_sizes(SEQUENCE, 8, None, None)
    assert [size["tokens"] for size in sizes] == [1, 7, 15, 16, 17, 35, 40]
    assert {size["batch"] for size in sizes} == {1, 2, 5}


def test_all_combinations_where_both_were_asked_for() -> None:
    assert len(all_sizes(SEQUENCE, 8, [1, 3], [2, 5])) == 4


def test_a_size_asked_for_twice_is_one_case() -> None:
    assert all_sizes(IMAGES, None, [3, 3, 3], None) == [{"batch": 3}]
    assert len(all_sizes(SEQUENCE, None, [2, 2], [5, 5])) == 1


def test_the_usual_sizes_keep_to_the_range_of_an_axis() -> None:
    for size in all_sizes(NARROW, None, None, None):
        assert 2 <= size["batch"] <= 4
        assert 3 <= size["tokens"] <= 9


@pytest.mark.parametrize("interface", [UNBATCHED, FIXED_ROWS], ids=["no batch", "fixed batch"])
def test_a_length_alone_is_no_batch(interface: Interface) -> None:
    assert interface.batch is None
    assert [size["tokens"] for size in all_sizes(interface, 4, None, None)] == [1, 7, 8, 9, 19]
    assert all_sizes(interface, None, None, [6]) == [{"tokens": 6}]
    with pytest.raises(InputError, match=r"batches='.*' was given, but the model has no dynamic axis"):
        all_sizes(interface, None, [1], None)


def test_a_static_model_has_one_size() -> None:
    assert all_sizes(STATIC, None, None, None) == [{}]
    with pytest.raises(InputError, match=r"lengths='.*' was given"):
        all_sizes(STATIC, None, None, [4])


@pytest.mark.parametrize(
    ("batches", "lengths", "message"),
    [
        (None, [41], "The axis tokens takes sizes from 1 to 40, got 41"),
        (None, [10000], "got 10000"),
        ([0], None, "The axis batch takes sizes from 1, got 0"),
        ([-1], None, "got -1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(batches: list[int] | None, lengths: list[int] | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        all_sizes(SEQUENCE, None, batches, lengths)
