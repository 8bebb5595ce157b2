"""Made-up rows of a benchmark: a call for each round, which took so many milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from driver.contest import LEAST_ROUNDS, Row

FACTS: dict[str, Any] = {
    "machine": {"cpu": "P", "instructions": "AVX2", "cores": 2, "versions": {"torch": "2"}},
    "threads": 1,
    "rounds": LEAST_ROUNDS,
}


class Place(NamedTuple):
    tokens: int


EIGHT = Place(8)


def made_up(times: Mapping[str, float | Sequence[float]], place: Any = EIGHT, **more: Any) -> Row:
    blocks = {}
    for name, found in times.items():
        rounds = [found] * LEAST_ROUNDS if isinstance(found, float) else found
        blocks[name] = [[round(1e6 * value)] for value in rounds]
    return Row(**{"place": place, "blocks": blocks, "busy": 0.0, "threads": 1, **more})
