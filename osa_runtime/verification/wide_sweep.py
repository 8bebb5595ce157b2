"""The wide sweep of verify and compare: the essential cases are always run, the others while there is time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from osa_runtime.interface import Interface
from osa_runtime.parity.certificate import Check
from osa_runtime.parity.feeds import Case
from osa_runtime.parity.plan import Planned, essential, further
from osa_runtime.verification.options import VerifyOptions

SECONDS = 20.0  # for what is not essential


def widened(
    signature: Interface,
    cases: Sequence[Case],
    options: VerifyOptions,
    run: Callable[[Case], None],
    *,
    width: int | None = None,
    nan: bool = True,
) -> Check:
    """Run what goes beyond ``cases``, the plain sweep, to which ``run`` adds; without ``nan`` nothing that may be NaN.

    The check says what all of them cover.
    """
    known = {case.name for case in cases}
    middle = next((case.sizes for case in cases if case.kind != "random"), cases[-1].sizes)
    grid = options.batches is None and options.lengths is None

    def run_new(planned: Planned) -> None:
        case = planned.case(signature)
        if case.name not in known and (nan or not planned.may_be_nan):
            known.add(case.name)
            run(case)

    for planned in essential(signature, middle, options.seed, grid=grid):
        run_new(planned)
    more = further(signature, middle, width, options.seed) if grid and not options.quick else []
    left_out = affordable(more, run_new, options.seconds)
    return described(signature, cases, left_out)


def affordable(planned: Sequence[Planned], run: Callable[[Planned], None], seconds: float | None) -> int:
    """Run the plan in its order and leave out what would take too long, by what the others took; how many those are."""
    seconds = SECONDS if seconds is None else seconds
    start, pace, left_out = time.monotonic(), 0.0, 0
    for one in planned:
        begun = time.monotonic()
        if begun - start + pace * one.cells > seconds:
            left_out += 1
            continue
        run(one)
        # Half a second is the cost of starting, not of the size.
        pace = max(pace, (time.monotonic() - begun - 0.5) / one.cells)
    return left_out


def described(signature: Interface, cases: Sequence[Case], left_out: int) -> Check:
    """What the cases cover, in one line."""
    parts = [f"{len(cases)} cases", *_ranges(cases), *_ids(signature, cases)]
    if left_out:
        parts.append(f"{left_out} more sizes were left out for time")
    return Check("cases", True, ", ".join(parts))


def _ranges(cases: Sequence[Case]) -> Iterator[str]:
    for axis in dict.fromkeys(axis for case in cases for axis in case.sizes):
        sizes = {case.sizes[axis] for case in cases if axis in case.sizes}
        yield f"{axis} {min(sizes)} to {max(sizes)} ({len(sizes)} sizes)"


def _ids(signature: Interface, cases: Sequence[Case]) -> Iterator[str]:
    for name, limits in signature.values.items():
        seen = np.unique(np.concatenate([case.feeds[name].reshape(-1) for case in cases if name in case.feeds]))
        count, kind = limits["max"] - limits["min"] + 1, "shades" if name in signature.pixels else "ids"
        yield f"every one of {count} {kind}" if len(seen) == count else f"{len(seen)} of {count} {kind}"
