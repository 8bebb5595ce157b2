"""Contenders in rotating blocks: the same inputs and threads, another one first in every round.

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
from osa_runtime.benchmarking.timing import Blocks, Schedule, TimedCall, rotate

LEAST_ROUNDS = 15
LONG, SLOW = 0.1, 0.5  # seconds of a call that is a block of its own, and of one that needs no warm-up either
WRONG = 1e-2  # a relative error of this and more is not an answer

Figures = Mapping[str, float | None]


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


class Variant(NamedTuple):
    """One implementation of a contender: the call, and its result as a tensor that can be compared."""

    call: TimedCall
    as_tensor: Callable[[Any], Tensor] = torch.as_tensor


@dataclass(frozen=True)
class Row:
    """The nanoseconds of every timed call at one place, by contender and round.

    ``busy`` has the cores that others used. ``errors`` are against float64, relative. ``variants`` has the fastest
    variant of contenders that have several, ``missing`` the reason why a contender has no time, such as a wrong answer,
    and ``figures`` what else was measured.
    """

    place: Any  # a NamedTuple of sizes
    blocks: Mapping[str, Blocks]
    busy: float | None
    threads: int
    errors: Mapping[str, float] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, Figures] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.blocks

    def milliseconds(self, name: str) -> Percentiles:
        return spread_of(block_medians(self.blocks[name]))

    def ratio(self, name: str, against: str) -> Percentiles | None:
        """The speed relative to ``against``, round by round; None if one of them has no time."""
        return ratio(self.blocks[name], self.blocks[against]) if name in self and against in self else None

    def figure(self, name: str, figure: str) -> float | None:
        return self.figures.get(name, {}).get(figure)

    @property
    def contention(self) -> str | None:
        """The reason why nothing that was measured here can be trusted, or None."""
        return contention_doubt(self.busy, self.threads)

    def doubt(self, name: str) -> str | None:
        """The reason not to trust the time of this contender, or None."""
        if self.contention is not None:
            return self.contention
        if len(self.blocks[name]) < LEAST_ROUNDS:
            return f"{len(self.blocks[name])} rounds are too few; expected {LEAST_ROUNDS} or more."
        wide = self.milliseconds(name).relative > LARGEST_SPREAD
        return f"the rounds spread by more than {LARGEST_SPREAD:.0%}." if wide else None

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.place._asdict(),
            "cores_busy_with_others": self.busy,
            "missing": dict(self.missing),
            "contenders": {name: self.contender_as_dict(name) for name in self.blocks},
        }

    def contender_as_dict(self, name: str) -> dict[str, Any]:
        blocks = self.blocks[name]
        return {
            **{f"{key}_ms": value for key, value in self.milliseconds(name).as_dict().items()},
            "calls": sum(map(len, blocks)),
            "rounds_ms": block_medians(blocks).tolist(),
            "error": self.errors.get(name),
            "variant": self.variants.get(name),
            "doubt": self.doubt(name),
            **self.figures.get(name, {}),
        }


@dataclass(frozen=True)
class Contest:
    """The contenders at one place, each with its variants, of which the fastest takes part.

    ``exact`` has the answer of a contender in float64, or None if there is none; any finite answer of a ``coarse`` one
    counts. ``weigh`` measures further figures of a contender and its variant, once it has a time.
    """

    place: Any
    contenders: Mapping[str, Mapping[str, Variant]]
    threads: int
    exact: Callable[[str], Tensor | None] = lambda _: None
    coarse: Sequence[str] = ()
    weigh: Callable[[str, str], Figures] = lambda *_: {}
    missing: Mapping[str, str] = field(default_factory=dict)

    def measure(self, pace: Pace) -> Row:
        torch.set_num_threads(self.threads)
        chosen = {name: fastest(variants) for name, variants in self.contenders.items()}
        variants = {name: self.contenders[name][best] for name, best in chosen.items()}
        answers = {name: exact for name in variants if (exact := self.exact(name)) is not None}
        errors = {
            name: relative_error(variants[name].as_tensor(variants[name].call()), x) for name, x in answers.items()
        }
        limits = {name: math.inf if name in self.coarse else WRONG for name in errors}
        wrong = {name: error for name, error in errors.items() if not error < limits[name]}  # NaN, too
        calls = {name: variant.call for name, variant in variants.items() if name not in wrong}
        watch = ContentionWatch()
        blocks, busy = rotate_at(pace, calls) if calls else {}, watch.busy_cores()
        return Row(
            place=self.place,
            blocks=blocks,
            busy=busy,
            threads=self.threads,
            errors={name: error for name, error in errors.items() if name in calls},
            variants={name: best for name, best in chosen.items() if best and name in calls},
            missing={**self.missing, **{n: f"a wrong answer: its relative error is {e:.1e}" for n, e in wrong.items()}},
            figures={name: self.weigh(name, chosen[name]) for name in calls},
        )


def rotate_at(pace: Pace, calls: Mapping[str, TimedCall]) -> dict[str, Blocks]:
    return rotate(calls, {name: pace.schedule(seconds_of(call)) for name, call in calls.items()})


def fastest(variants: Mapping[str, Variant]) -> str:
    """The fastest of several variants of a contender, by a short contest, or by a call each where one is slow."""
    if len(variants) == 1:
        return next(iter(variants))
    calls = {name: variant.call for name, variant in variants.items()}
    times = {name: seconds_of(call) for name, call in calls.items()}
    if max(times.values()) < SLOW:
        blocks = rotate_at(Pace(rounds=5, block_seconds=0.03), calls)
        times = {name: spread_of(block_medians(found)).median for name, found in blocks.items()}
    return min(times, key=lambda name: times[name])


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def seconds_of(call: TimedCall) -> float:
    """Seconds of the second call; the first may compile, or fill caches. A slow one is not called twice."""
    for _ in range(2):
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        if seconds >= 4 * SLOW:
            break
    return seconds
