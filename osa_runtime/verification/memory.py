"""Work in pieces, so that the values held at one time stay within a budget at any depth of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

BUDGET = 256 * 2**20  # bytes


def chunks(things: Sequence[T], bytes_each: int, budget: int = BUDGET) -> Iterator[tuple[T, ...]]:
    size = max(1, budget // max(1, bytes_each))
    for start in range(0, len(things), size):
        yield tuple(things[start : start + size])
