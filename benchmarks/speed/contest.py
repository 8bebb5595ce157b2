"""Contenders in rotating blocks: the same inputs, the same threads, another one first in every round.

The blocks are those of ``osa bench``. Here contenders may differ a thousandfold, so each has as many calls as suit it.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
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
        """The speed relative to ``against``, round by round; None if one of them has no time."""
        return ratio(self.blocks[name], self.blocks[against]) if name in self and against in self else None

    def doubt(self, name: str) -> str | None:
        """The reason not to trust the time of this contender, or None."""
        rounds, spread = len(self.blocks[name]), self.milliseconds(name).relative
        if contention := contention_doubt(self.busy, self.threads):
            return contention
        if rounds < LEAST_ROUNDS:
            return f"{rounds} rounds are too few; expected {LEAST_ROUNDS} or more."
        wide = spread > LARGEST_SPREAD
        return f"the rounds spread by more than {LARGEST_SPREAD:.0%}." if wide else None

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


class Variant(NamedTuple):
    """One implementation of a contender: the call, and its result as a tensor that can be compared."""

    call: TimedCall
    as_tensor: Callable[[Any], Tensor] = torch.as_tensor


def fastest(variants: Mapping[str, Variant], threads: int) -> str:
    """The fastest of several variants of a contender, by a short contest."""
    if len(variants) == 1:
        return next(iter(variants))
    first = {name: _seconds(variant.call) for name, variant in variants.items()}
    if max(first.values()) >= SLOW:
        return min(first, key=lambda name: first[name])
    contest = compete(
        {name: variant.call for name, variant in variants.items()}, Pace(rounds=5, block_seconds=0.03), threads
    )
    return min(variants, key=lambda name: contest.milliseconds(name).median)


@dataclass(frozen=True)
class Row:
    """The contest at one place. ``variants`` has the fastest variant of contenders that have several.

    ``errors`` are against float64, relative; a contender whose answer was wrong is in ``wrong`` and has no time.
    """

    place: Any
    contest: Contest
    errors: Mapping[str, float]
    variants: Mapping[str, str] = field(default_factory=dict)
    wrong: Mapping[str, float] = field(default_factory=dict)


def measure_row(
    place: Any,
    contenders: Mapping[str, Mapping[str, Variant]],
    exact: Callable[[str], Tensor | None],
    pace: Pace,
    threads: int,
    coarse: Sequence[str] = (),
) -> Row:
    """Each contender takes part with the fastest of its variants; ``exact`` has its answer, None if there is none.

    Any finite answer of a ``coarse`` one is its answer.
    """
    chosen = {name: fastest(variants, threads) for name, variants in contenders.items()}
    variants = {name: contenders[name][best] for name, best in chosen.items()}
    answers = {name: expected for name in variants if (expected := exact(name)) is not None}
    errors = {name: relative_error(variants[name].as_tensor(variants[name].call()), x) for name, x in answers.items()}
    limits = {name: math.inf if name in coarse else WRONG for name in errors}
    wrong = {name: error for name, error in errors.items() if not error <= limits[name]}  # NaN, too
    contest = compete({name: variant.call for name, variant in variants.items() if name not in wrong}, pace, threads)
    right = {name: error for name, error in errors.items() if name not in wrong}
    return Row(place, contest, right, {name: best for name, best in chosen.items() if best}, wrong)


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
    """Seconds of the second call; the first may compile, or fill caches. A slow one is not called twice."""
    for _ in range(2):
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        if seconds >= 4 * SLOW:
            break
    return seconds
