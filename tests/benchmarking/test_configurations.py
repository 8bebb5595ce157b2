"""Sizes that are measured by default, and sizes that are refused."""

from __future__ import annotations

import pytest

from osa_runtime import InputError
from osa_runtime.benchmarking.configurations import Configuration, DynamicAxes, configurations
from osa_runtime.cli.options import parse_sizes
from osa_runtime.interface import Interface, Roles, TensorSpec

IMAGES = [TensorSpec("images", "float32", ("batch", 1, 8, 8))]
FIXED = [TensorSpec("tokens", "int64", (1, 64)), TensorSpec("mask", "bool", (1, 64))]
SEQUENCE = [TensorSpec("tokens", "int64", ("batch", "tokens")), TensorSpec("mask", "bool", ("batch", "tokens"))]
BARE = [TensorSpec("tokens", "any", ("...",))]


def axes_of(specs, ranges) -> DynamicAxes:
    return DynamicAxes(Interface(tuple(specs), axes=ranges))


def test_symbols_have_the_roles_that_the_export_found() -> None:
    inputs = (TensorSpec("x", "float32", ("s77", "s27", 16)),)
    axes = DynamicAxes(Interface(inputs, axes={"s27": {"max": 16}}, roles=Roles("s77")))
    assert configurations(axes, None, None) == [Configuration(b, t) for t in (1, 4, 16) for b in (1, 8)]
    unknown = DynamicAxes(Interface(inputs))
    assert (unknown.batch, unknown.tokens, unknown.others) == (None, None, ("s77", "s27"))


@pytest.mark.parametrize(
    ("specs", "ranges", "expected"),
    [
        (IMAGES, {}, [(1, None), (8, None)]),
        (IMAGES, {"batch": {"max": 4}}, [(1, None)]),
        (IMAGES, {"batch": {"min": 2, "max": 4}}, [(2, None)]),
        (FIXED, {}, [(1, None)]),
        (SEQUENCE, {"tokens": {"max": 64}}, [(1, 4), (8, 4), (1, 16), (8, 16), (1, 64), (8, 64)]),
        (SEQUENCE, {"tokens": {"max": 3}}, [(1, 1), (8, 1), (1, 3), (8, 3)]),
        (SEQUENCE, {"tokens": {"max": 10**6}}, [(b, t) for t in (64, 256, 1024) for b in (1, 8)]),
        (SEQUENCE, {}, [(1, 16), (8, 16)]),
        (BARE, {}, [(1, None)]),
    ],
    ids=["images", "small batch", "least batch", "fixed", "lengths", "short", "long", "unknown", "bare"],
)
def test_defaults(specs, ranges, expected) -> None:
    found = configurations(axes_of(specs, ranges), None, None)
    assert [(c.batch, c.tokens) for c in found] == expected


def test_what_is_asked_for_is_measured() -> None:
    found = configurations(axes_of(SEQUENCE, {"tokens": {"max": 64}}), (3,), (64, 5))
    assert [(c.batch, c.tokens) for c in found] == [(3, 64), (3, 5)]
    assert [str(c) for c in found] == ["batch 3, 64 tokens", "batch 3, 5 tokens"]
    assert configurations(axes_of(FIXED, {}), (1,), None) == [Configuration(1)]


def test_data_decides_the_length() -> None:
    found = configurations(axes_of(SEQUENCE, {"tokens": {"max": 64}}), None, None, Configuration(3, 7))
    assert [(c.batch, c.tokens) for c in found] == [(1, 7), (8, 7)]
    bare = configurations(axes_of(BARE, {}), None, None, Configuration(3))
    assert [(c.batch, c.tokens) for c in bare] == [(3, None)]


@pytest.mark.parametrize(
    ("specs", "batches", "tokens", "data", "message"),
    [
        (SEQUENCE, None, (16, 65, 100), None, "tokens='65,100', but the model's axis tokens takes 1 to 64"),
        (SEQUENCE, (1, 500), None, None, "batches='1,500', but the model's axis batch takes 2 to 32"),
        (FIXED, (8,), None, None, "exported with a fixed batch of 1"),
        (FIXED, None, (16,), None, "no axis of the model's inputs is a dynamic length"),
        (IMAGES, (2,), (16,), None, "no axis of the model's inputs is a dynamic length"),
        (SEQUENCE, (2,), (16,), Configuration(3, 7), "the data has 7 on the axis tokens"),
    ],
    ids=["too long", "too many", "fixed batch", "fixed length", "no length", "short data"],
)
def test_sizes_that_the_model_does_not_take(specs, batches, tokens, data, message: str) -> None:
    axes = axes_of(specs, {"tokens": {"max": 64}, "batch": {"min": 2, "max": 32}})
    with pytest.raises(InputError, match=message):
        configurations(axes, batches, tokens, data)


def test_axes_beyond_batch_and_length_are_others() -> None:
    axes = axes_of([TensorSpec("x", "float32", ("batch", "height", "width"))], {})
    assert (axes.batch, axes.tokens, axes.others) == ("batch", None, ("height", "width"))


@pytest.mark.parametrize(("text", "expected"), [(None, None), ("1,8", (1, 8)), (" 4 ", (4,)), ("2,2,1", (2, 1))])
def test_sizes_are_read(text: str | None, expected: tuple[int, ...] | None) -> None:
    assert parse_sizes("batches", text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "1,", "1;2", "eight", "1.5", "²", "9" * 5000])
def test_no_sizes(text: str) -> None:
    with pytest.raises(InputError, match=r"batches=.*: expected whole numbers"):
        parse_sizes("batches", text)
