"""Contenders in rotating blocks: the same inputs, the same threads, another one first in every round.

The blocks are those of ``osa bench``: a pause, in which the thread pools of the one before fall asleep, warm-up calls,
then several timed calls. Here contenders may differ a thousandfold, so each has as many calls as suit it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from osa_runtime.benchmarking.contention import ContentionWatch, contention_doubt
from osa_runtime.benchmarking.figures import LARGEST_SPREAD, Spread, block_medians, ratio
from osa_runtime.benchmarking.rotation import Blocks, Call, Schedule, rotate

LEAST_ROUNDS = 15
LONG, SLOW = 0.1, 0.5  # seconds of a call that is a block of its own, and of one that needs no warm-up either


@dataclass(frozen=True)
class Pace:
    rounds: int = LEAST_ROUNDS
    block_seconds: float = 0.06
    pause: float = 0.05

    def schedule(self, call_seconds: float) -> Schedule:
        """One block of a contender whose call takes so long."""
        if call_seconds >= LONG:
            warm_up = 0 if call_seconds >= SLOW else 1
            return Schedule(warm_up, iterations=1, seconds=0, rounds=1, pause=self.pause)
        warm_up = 3 if call_seconds < self.block_seconds / 3 else 1
        return Schedule(warm_up, iterations=3, seconds=self.block_seconds, rounds=1, pause=self.pause)


@dataclass(frozen=True)
class Contest:
    """The nanoseconds of every timed call, by contender and round; ``busy`` has the cores that others used."""

    blocks: Mapping[str, Blocks]
    busy: float | None
    threads: int

    def __contains__(self, name: str) -> bool:
        return name in self.blocks

    def milliseconds(self, name: str) -> Spread:
        return spread_of(block_medians(self.blocks[name]))

    def ratio(self, name: str, against: str) -> Spread:
        """How many times as fast as ``against`` it is: the median of the rounds' ratios, and their spread."""
        return ratio(self.blocks[name], self.blocks[against])

    def doubt(self, name: str) -> str | None:
        """Why not to trust the time of this contender."""
        contention = contention_doubt(self.busy, self.threads)
        rounds, spread = len(self.blocks[name]), self.milliseconds(name).relative
        if contention:
            return contention
        if rounds < LEAST_ROUNDS:
            return f"{rounds} rounds are too few; expected {LEAST_ROUNDS} or more."
        if spread > LARGEST_SPREAD:
            return f"the rounds spread by {spread:.0%}, more than {LARGEST_SPREAD:.0%}."
        return None

    def as_dict(self) -> dict[str, Any]:
        return {
            "cores_busy_with_others": self.busy,
            "contenders": {
                name: {
                    **{f"{key}_ms": value for key, value in self.milliseconds(name).as_dict().items()},
                    "calls": sum(map(len, blocks)),
                    "rounds_ms": [float(value) for value in block_medians(blocks)],
                    "doubt": self.doubt(name),
                }
                for name, blocks in self.blocks.items()
            },
        }


def compete(contenders: Mapping[str, Call], pace: Pace, threads: int) -> Contest:
    schedules = {name: pace.schedule(_seconds(call)) for name, call in contenders.items()}
    blocks: dict[str, Blocks] = {name: [] for name in contenders}
    names = list(contenders)
    watch = ContentionWatch()
    for turn in range(pace.rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            blocks[name] += rotate({name: contenders[name]}, schedules[name])[name]
    return Contest(blocks, watch.busy_cores(), threads)


def fastest(candidates: Mapping[str, Call], threads: int) -> str:
    """Which of several ways to compute the same thing is the fastest here, by a short contest."""
    if len(candidates) == 1:
        return next(iter(candidates))
    first = {name: _seconds(call) for name, call in candidates.items()}
    if max(first.values()) >= SLOW:
        return min(first, key=lambda name: first[name])
    contest = compete(candidates, Pace(rounds=5, block_seconds=0.03), threads)
    return min(candidates, key=lambda name: contest.milliseconds(name).median)


def all_doubts(contests: Mapping[str, Contest]) -> list[str]:
    """Every reason not to trust some figure, once for all figures that it holds for."""
    concerned: dict[str, list[str]] = {}
    for place, contest in contests.items():
        by_reason: dict[str, list[str]] = {}
        for name in contest.blocks:
            by_reason.setdefault(contest.doubt(name) or "", []).append(name)
        for reason, names in by_reason.items():
            who = "" if len(names) == len(contest.blocks) else f" ({'; '.join(names)})"
            concerned.setdefault(reason, []).append(f"{place}{who}")
    concerned.pop("", None)
    everywhere = list(contests)
    return [
        f"everywhere: {reason}" if places == everywhere else f"{' / '.join(places)}: {reason}"
        for reason, places in concerned.items()
    ]


def spread_of(values: Any) -> Spread:
    p10, median, p90 = np.percentile(np.asarray(values, np.float64), (10, 50, 90))
    return Spread(float(median), float(p10), float(p90))


def _seconds(call: Call) -> float:
    """Of the second call; the first may compile, or fill caches. One that is slow is not called twice."""
    for _ in range(2):
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        if seconds >= 4 * SLOW:
            break
    return seconds
