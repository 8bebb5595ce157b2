"""Random inputs of every type, and real data fitted to a configuration."""

from __future__ import annotations

import numpy as np
import pytest

from osa_runtime import InputError
from osa_runtime.benchmarking.configurations import (
    Configuration,
    DynamicAxes,
    data_sizes,
    describe_random,
    fit_data,
    random_feeds,
)
from osa_runtime.interface import Interface, TensorSpec

SEQUENCE = [TensorSpec("tokens", "int64", ("batch", "tokens")), TensorSpec("mask", "bool", ("batch", "tokens"))]
BARE = [TensorSpec("x", "any", ("...",))]


def axes_of(specs, values=None) -> DynamicAxes:
    return DynamicAxes(Interface(tuple(specs), values=values or {}))


AXES = axes_of(SEQUENCE)


def test_types_and_shapes_are_the_models() -> None:
    specs = [*SEQUENCE, TensorSpec("x", "float16", ("batch", 3)), TensorSpec("flag", "uint8", (2,))]
    feeds = random_feeds(axes_of(specs), Configuration(4, 7), 1)
    assert {n: (str(x.dtype), x.shape) for n, x in feeds.items()} == {
        "tokens": ("int64", (4, 7)),
        "mask": ("bool", (4, 7)),
        "x": ("float16", (4, 3)),
        "flag": ("uint8", (2,)),
    }
    assert set(np.unique(feeds["tokens"])) == {0, 1}
    assert feeds["mask"].all()
    assert describe_random(Interface(tuple(SEQUENCE))) == "tokens: ids 0 to 1, mask: all true"


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"max": 6}, {0, 1, 2, 3, 4, 5, 6}),
        ({"min": 5, "max": 6}, {5, 6}),
        ({"min": 0, "max": 0}, {0}),
        ({"min": 3}, {3}),
    ],
    ids=str,
)
def test_ids_come_from_the_whole_vocabulary(known: dict[str, int], expected: set[int]) -> None:
    feeds = random_feeds(axes_of(SEQUENCE, {"tokens": known}), Configuration(20, 20), 0)
    assert set(np.unique(feeds["tokens"])) == expected
    assert f"ids {min(expected)} to {max(expected)}" in describe_random(
        Interface(tuple(SEQUENCE), values={"tokens": known})
    )


def test_a_seed_gives_the_same_inputs_again() -> None:
    specs = [TensorSpec("x", "float32", ("batch", 3))]
    first, again, other = (random_feeds(axes_of(specs), Configuration(2), s)["x"] for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("specs", "batch", "message"),
    [
        (BARE, 1, "neither type nor shape of x"),
        ([TensorSpec("x", "float32", ("batch", "height", "width"))], 1, r"more dynamic axes \(height, width\)"),
        ([TensorSpec("x", "float64", ("batch", 10**6))], 999_999_999, "do not fit into memory"),
        ([TensorSpec("x", "float64", ("batch", 10**15))], 999_999_999, "do not fit into memory"),
    ],
    ids=["bare", "axes", "memory", "addresses"],
)
def test_what_cannot_be_made_up(specs: list[TensorSpec], batch: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        random_feeds(axes_of(specs), Configuration(batch), 0)


def test_rows_are_repeated_or_cut_and_tokens_cut() -> None:
    data = {"tokens": np.arange(6).reshape(2, 3), "mask": np.array([[True, True, False], [True, False, False]])}
    assert data_sizes(data, AXES) == Configuration(2, 3)
    more = fit_data(data, AXES, Configuration(5, 2))
    assert more["tokens"].tolist() == [[0, 1], [3, 4], [0, 1], [3, 4], [0, 1]]
    assert more["mask"].shape == (5, 2)
    assert fit_data(data, AXES, Configuration(1, 3))["tokens"].tolist() == [[0, 1, 2]]


def test_data_for_a_fixed_batch_and_for_a_bare_file() -> None:
    fixed = [TensorSpec("x", "float32", (4, 2)), TensorSpec("table", "float32", (3, 3))]
    x, table = np.ones((1, 2), np.float32), np.eye(3, dtype=np.float32)
    fitted = fit_data({"x": x, "table": table}, axes_of(fixed), Configuration(4))
    assert (fitted["x"].shape, fitted["table"].shape) == ((4, 2), (3, 3))
    bare = axes_of(BARE)
    assert data_sizes({"x": x}, bare) == Configuration(1)
    assert fit_data({"x": x}, bare, Configuration(3))["x"].shape == (3, 2)


def test_data_that_does_not_fit_is_left_for_the_session_to_refuse() -> None:
    data = {"tokens": np.zeros((2, 3), int), "mask": np.zeros((2, 1), bool), "extra": np.zeros(()), "rank": np.zeros(3)}
    fitted = fit_data(data, AXES, Configuration(2, 3))
    assert {name: x.shape for name, x in fitted.items()} == {n: x.shape for n, x in data.items()}


def test_data_without_rows_is_refused() -> None:
    with pytest.raises(InputError, match="has no rows"):
        data_sizes({"tokens": np.zeros((0, 3), int)}, AXES)
