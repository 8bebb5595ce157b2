"""What each party says on a case, or why it says nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from osa_runtime.errors import ExponentRangeError, OsaError
from osa_runtime.parity.feeds import Case
from osa_runtime.parity.judgement import Outputs
from osa_runtime.runtime.session import Session
from osa_runtime.verification.inside.insides import Array

RunFeeds = Callable[[Mapping[str, Array]], dict[str, Array]]


def answer(session: Session, case: Case) -> Outputs | str:
    try:
        return session.run(case.feeds)
    except OsaError as error:
        return f"it does not run: {error}"


def reference_answers(run: RunFeeds, case: Case, batch: str | None) -> tuple[Outputs | None, dict[int, str]]:
    """The answers, with NaN in the rows that are refused, and the refusals by row.

    Eager refuses a whole batch for one row that is out of range; the others are then asked one by one. None and a
    refusal of row 0 where no row is answered.
    """
    try:
        return run(case.feeds), {}
    except ExponentRangeError as error:
        refusal = str(error)
    rows = case.sizes.get(batch or "", 1)
    if rows < 2:
        return None, {0: refusal}
    found: dict[int, Outputs] = {}
    refusals: dict[int, str] = {}
    for row in range(rows):
        try:
            found[row] = run(_row(case, batch, row))
        except ExponentRangeError as error:
            refusals[row] = str(error)
    return _together(found, rows), refusals


def _row(case: Case, batch: str | None, row: int) -> dict[str, Any]:
    """One row of each input that has as many as the batch."""
    rows = case.sizes[batch or ""]
    return {
        name: array[row : row + 1] if array.ndim and array.shape[0] == rows else array
        for name, array in case.feeds.items()
    }


def _together(found: Mapping[int, Outputs], rows: int) -> Outputs | None:
    if not found:
        return None
    first = next(iter(found.values()))
    outputs = {}
    for name, part in first.items():
        empty = np.nan if part.dtype.kind == "f" else 0
        outputs[name] = np.full((rows, *part.shape[1:]), empty, part.dtype)
        for row, values in found.items():
            outputs[name][row] = values[name][0]
    return outputs
