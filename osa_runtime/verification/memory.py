"""Work in pieces, so that the values that are held at one time stay within a budget whatever the model's depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

BUDGET = 256 * 2**20  # bytes


def chunks(names: Sequence[str], bytes_each: int, budget: int = BUDGET) -> Iterator[tuple[str, ...]]:
    size = max(1, budget // max(1, bytes_each))
    for start in range(0, len(names), size):
        yield tuple(names[start : start + size])
