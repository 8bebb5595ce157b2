"""Timed calls in rotating blocks: a pause, warm-up calls, several timed calls, then the next contender.

The thread pools of ONNX Runtime and torch spin for a while after each call and take each other's cores, so contenders
that take turns call by call slow each other down. After a pause the other pool sleeps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from osa_runtime.errors import InputError

TimedCall = Callable[[], object]
Blocks = list[list[int]]
Clock = Callable[[], int]


@dataclass(frozen=True)
class Schedule:
    """Each contender has ``rounds`` blocks, which together hold ``iterations`` calls or more and last ``seconds``."""

    warm_up: int = 3
    iterations: int = 30
    seconds: float = 1.0
    rounds: int = 10
    pause: float = 0.05

    def __post_init__(self) -> None:
        for name, least in (("warm_up", 0), ("iterations", 1), ("rounds", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}, expected a whole number of at least {least}.")
        for name in ("seconds", "pause"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}, expected a finite number of seconds, 0 or more.")

    @property
    def blocks(self) -> int:
        """The number of blocks, at most the number of calls, so that few calls stay few."""
        return min(self.rounds, self.iterations)


def rotate(
    contenders: Mapping[str, TimedCall],
    schedule: Schedule | Mapping[str, Schedule],
    *,
    after_round: Callable[[], None] = lambda: None,
    clock: Clock = time.perf_counter_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Blocks]:
    """Nanoseconds of each timed call, by contender and block. Every round starts with another contender.

    Contenders whose calls last very differently have a schedule each, with the same number of blocks.
    """
    schedules = dict.fromkeys(contenders, schedule) if isinstance(schedule, Schedule) else schedule
    blocks: dict[str, Blocks] = {name: [] for name in contenders}
    names = list(contenders)
    (rounds,) = {schedules[name].blocks for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            sleep(schedules[name].pause)
            blocks[name].append(_timed_block(contenders[name], schedules[name], clock))
        after_round()
    return blocks


def _timed_block(call: TimedCall, schedule: Schedule, clock: Clock) -> list[int]:
    for _ in range(schedule.warm_up):
        call()
    calls = math.ceil(schedule.iterations / schedule.blocks)
    budget = schedule.seconds * 1e9 / schedule.blocks
    times: list[int] = []
    spent = 0
    while len(times) < calls or spent < budget:
        start = clock()
        call()
        times.append(clock() - start)
        # A clock too coarse to see the call must not keep the block from ending.
        spent += max(1, times[-1])
    return times
