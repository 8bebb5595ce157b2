"""Blocks, their order and their number, with a clock that the contenders themselves advance."""

from __future__ import annotations

import pytest

from osa_runtime import InputError
from osa_runtime.benchmarking.timing import Schedule, rotate


class Stage:
    """A clock, and contenders whose calls take a known time and are written down."""

    def __init__(self, **nanoseconds: int) -> None:
        self.now, self.calls, self.pauses = 0, [], []
        self.contenders = {name: self._contender(name, time) for name, time in nanoseconds.items()}

    def _contender(self, name: str, time: int):
        def call() -> None:
            self.now += time
            self.calls.append(name)

        return call

    def rotate(self, schedule: Schedule) -> dict[str, list[list[int]]]:
        return rotate(self.contenders, schedule, clock=lambda: self.now, sleep=self.pauses.append)


def test_blocks_rotate_with_a_pause_and_warm_up_before_each() -> None:
    stage = Stage(a=10, b=30)
    blocks = stage.rotate(Schedule(warm_up=1, iterations=4, seconds=0, rounds=2, pause=0.5))
    assert blocks == {"a": [[10, 10], [10, 10]], "b": [[30, 30], [30, 30]]}
    assert "".join(stage.calls) == "aaa" + "bbb" + "bbb" + "aaa"
    assert stage.pauses == [0.5] * 4


def test_time_decides_where_calls_are_short() -> None:
    blocks = Stage(a=1000).rotate(Schedule(warm_up=0, iterations=2, seconds=1e-4, rounds=2))
    assert [len(block) for block in blocks["a"]] == [50, 50]


def test_calls_decide_where_they_are_long() -> None:
    blocks = Stage(a=10**10).rotate(Schedule(warm_up=0, iterations=7, seconds=0.1, rounds=3))
    assert [len(block) for block in blocks["a"]] == [3, 3, 3]


def test_few_calls_stay_few() -> None:
    assert Stage(a=5).rotate(Schedule(warm_up=0, iterations=2, seconds=0, rounds=10)) == {"a": [[5], [5]]}


def test_a_clock_that_stands_still_ends_the_block() -> None:
    blocks = Stage(a=0).rotate(Schedule(warm_up=0, iterations=1, seconds=1e-7, rounds=1))
    assert len(blocks["a"][0]) == 100


def test_every_round_is_told() -> None:
    told: list[None] = []
    rotate({"a": lambda: None}, Schedule(0, 3, 0, 3, 0), after_round=lambda: told.append(None))
    assert len(told) == 3


@pytest.mark.parametrize(
    "wrong",
    [{"warm_up": -1}, {"iterations": 0}, {"rounds": 0}, {"seconds": -1.0}, {"seconds": float("nan")}, {"pause": -0.1}],
    ids=str,
)
def test_an_impossible_schedule_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(wrong))} is .*expected"):
        Schedule(**wrong)
