"""Contenders in rotating blocks: the same inputs, the same threads, another one first in every round.

The blocks are those of ``osa bench``. Here contenders may differ a thousandfold, so each has as many calls as suit it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from osa_runtime.benchmarking.machine import ContentionWatch, contention_doubt
from osa_runtime.benchmarking.result import LARGEST_SPREAD, Percentiles, block_medians, ratio, spread_of
from osa_runtime.benchmarking.timing import Blocks, Clock, Schedule, TimedCall, rotate

LEAST_ROUNDS = 15
LONG, SLOW = 0.1, 0.5  # seconds of a call that is a block of its own, and of one that needs no warm-up either
WRONG = 1e-2  # a relative error beyond this is not an answer


@dataclass(frozen=True)
class Pace:
    rounds: int = LEAST_ROUNDS
    block_seconds: float = 0.06
    pause: float = 0.05

    def schedule(self, call_seconds: float) -> Schedule:
        """The schedule of a contender whose call takes ``call_seconds``."""
        if call_seconds >= LONG:
            return Schedule(0 if call_seconds >= SLOW else 1, self.rounds, 0, self.rounds, self.pause)
        warm_up = 3 if call_seconds < self.block_seconds / 3 else 1
        return Schedule(warm_up, 3 * self.rounds, self.rounds * self.block_seconds, self.rounds, self.pause)


@dataclass(frozen=True)
class Contest:
    """The nanoseconds of every timed call, by contender and round; ``busy`` has the cores that others used."""

    blocks: Mapping[str, Blocks]
    busy: float | None
    threads: int

    def __contains__(self, name: str) -> bool:
        return name in self.blocks

    def milliseconds(self, name: str) -> Percentiles:
        return spread_of(block_medians(self.blocks[name]))

    def ratio(self, name: str, against: str) -> Percentiles | None:
        """How many times as fast as ``against`` it is, round by round; None where one of them has no time."""
        return ratio(self.blocks[name], self.blocks[against]) if name in self and against in self else None

    def doubt(self, name: str) -> str | None:
        """Why not to trust the time of this contender."""
        rounds, spread = len(self.blocks[name]), self.milliseconds(name).relative
        if contention := contention_doubt(self.busy, self.threads):
            return contention
        if rounds < LEAST_ROUNDS:
            return f"{rounds} rounds are too few; expected {LEAST_ROUNDS} or more."
        wide = spread > LARGEST_SPREAD
        return f"the rounds spread by {spread:.0%}, more than {LARGEST_SPREAD:.0%}." if wide else None

    def as_dict(self, **more: Mapping[str, Any]) -> dict[str, Any]:
        """``more`` has further figures by contender."""
        contenders = {}
        for name, blocks in self.blocks.items():
            contenders[name] = {f"{key}_ms": value for key, value in self.milliseconds(name).as_dict().items()}
            contenders[name] |= {"calls": sum(map(len, blocks)), "rounds_ms": block_medians(blocks).tolist()}
            contenders[name] |= {"doubt": self.doubt(name), **{key: found.get(name) for key, found in more.items()}}
        return {"cores_busy_with_others": self.busy, "contenders": contenders}


def compete(calls: Mapping[str, TimedCall], pace: Pace, threads: int, clock: Clock = time.perf_counter_ns) -> Contest:
    schedules = {name: pace.schedule(_seconds(call)) for name, call in calls.items()}
    watch = ContentionWatch()
    blocks = rotate(calls, schedules, clock=clock) if calls else {}
    return Contest(blocks, watch.busy_cores(), threads)


def fastest(candidates: Mapping[str, TimedCall], threads: int) -> str:
    """The fastest of several ways to compute the same, by a short contest."""
    if len(candidates) == 1:
        return next(iter(candidates))
    first = {name: _seconds(call) for name, call in candidates.items()}
    if max(first.values()) >= SLOW:
        return min(first, key=lambda name: first[name])
    contest = compete(candidates, Pace(rounds=5, block_seconds=0.03), threads)
    return min(candidates, key=lambda name: contest.milliseconds(name).median)


class Way(NamedTuple):
    """One way to compute something: the call, and its result as a tensor that can be compared."""

    call: TimedCall
    as_tensor: Callable[[Any], Tensor] = torch.as_tensor


@dataclass(frozen=True)
class Row:
    """The contest at one place. ``ways`` has the fastest way of contenders that have several.

    ``errors`` are against float64, relative; a contender whose answer was wrong is in ``wrong`` and has no time.
    """

    place: Any
    contest: Contest
    errors: Mapping[str, float]
    ways: Mapping[str, str] = field(default_factory=dict)
    wrong: Mapping[str, float] = field(default_factory=dict)


def measure_row(
    place: Any,
    contenders: Mapping[str, Mapping[str, Way]],
    exact: Callable[[str], Tensor | None],
    pace: Pace,
    threads: int,
) -> Row:
    """Each contender takes part with the fastest of its ways; ``exact`` has its answer, None where there is none."""
    calls, errors, chosen, wrong = {}, {}, {}, {}
    for name, ways in contenders.items():
        best = fastest({way: found.call for way, found in ways.items()}, threads)
        if best:
            chosen[name] = best
        expected = exact(name)
        if expected is not None:
            error = relative_error(ways[best].as_tensor(ways[best].call()), expected)
            if not error <= WRONG:  # NaN, too
                wrong[name] = error
                continue
            errors[name] = error
        calls[name] = ways[best].call
    return Row(place, compete(calls, pace, threads), errors, chosen, wrong)


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def all_doubts(contests: Mapping[str, Contest]) -> list[str]:
    """Every reason not to trust some figure, once for all figures that it holds for."""
    concerned: dict[str, list[str]] = {}
    for place, contest in contests.items():
        doubts = {name: contest.doubt(name) for name in contest.blocks}
        for reason in dict.fromkeys(filter(None, doubts.values())):
            names = [name for name, doubt in doubts.items() if doubt == reason]
            who = "" if len(names) == len(doubts) else f" ({'; '.join(names)})"
            concerned.setdefault(reason, []).append(f"{place}{who}")
    everywhere = list(contests)
    return [f"{'everywhere' if p == everywhere else ' / '.join(p)}: {reason}" for reason, p in concerned.items()]


def _seconds(call: TimedCall) -> float:
    """Of the second call; the first may compile, or fill caches. One that is slow is not called twice."""
    for _ in range(2):
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        if seconds >= 4 * SLOW:
            break
    return seconds
