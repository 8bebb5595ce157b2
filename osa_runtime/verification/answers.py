"""The answers of each party to a case, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from osa_runtime.errors import ExponentRangeError, OsaError
from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.parity.certificate import Check
from osa_runtime.parity.comparison import Tolerance, compare_arrays
from osa_runtime.parity.feeds import Case
from osa_runtime.parity.judgement import Outputs
from osa_runtime.runtime.session import Session
from osa_runtime.verification.inside.model_parts import Array

RunFeeds = Callable[[Mapping[str, Array]], dict[str, Array]]


def answer(session: Session, case: Case) -> Outputs | str:
    try:
        return session.run(case.feeds)
    except OsaError as error:
        return f"it does not run: {error}"


def reference_answers(run: RunFeeds, case: Case, batch: str | None) -> tuple[Outputs | None, dict[int, str]]:
    """The answers, with NaN in the rows that are refused, and the refusals by row.

    Eager refuses a whole batch for one row that is out of range; the others are then run one by one. Returns
    None and a refusal of row 0 if no row is answered.
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
    """One row of each input that has as many rows as the batch."""
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


MOST_ROWS = 3


def check_rows(session: Session, interface: Interface, case: Case, tolerance: Tolerance) -> Check | None:
    """Return None if there is nothing to check: no rows, a batch of one, or NaN, which other checks report."""
    batch = interface.batch
    outputs = [spec.name for spec in session.outputs if spec.shape[:1] == (batch,)]
    if batch is None or case.sizes[batch] < 2 or interface.least(batch) > 1 or not outputs:
        return None
    name = f"rows ({case.kind})"
    try:
        together = session.run(case.feeds)
        if not all(np.isfinite(x).all() for x in together.values()):
            return None
        error, row = _worst(session, interface, case, {name: together[name] for name in outputs}, tolerance)
    except OsaError as failure:
        return Check(name, False, str(failure))
    passed = error <= tolerance.rtol
    said = "each row alone has the answer that it has in a batch" if passed else f"row {row} alone has another answer"
    return Check(name, passed, f"{said}: relative error {error:.2g}, tolerance {tolerance.rtol:.2g}")


def _worst(
    session: Session, interface: Interface, case: Case, together: Mapping[str, Array], tolerance: Tolerance
) -> tuple[float, int]:
    rows = case.sizes[interface.batch or ""]
    found = []
    for row in sorted({0, rows // 2, rows - 1})[:MOST_ROWS]:
        length = _real_length(interface, case, row)
        alone = session.run(_cut_row(case.feeds, interface.inputs, interface, row, length))
        for name, expected in _cut_row(together, session.outputs, interface, row, length).items():
            found.append((compare_arrays(alone[name], expected, tolerance).error, row))
    return max(found)


def _real_length(interface: Interface, case: Case, row: int) -> int | None:
    """The number of real tokens in the row, if the artifact takes that length."""
    if interface.mask is None or not interface.lengths:
        return None
    real = case.feeds[interface.mask][row]
    return max(int(real.sum()), interface.least(interface.lengths[0])) if real.ndim == 1 else None


def _cut_row(
    arrays: Mapping[str, Array], specs: Sequence[TensorSpec], interface: Interface, row: int, length: int | None
) -> dict[str, Array]:
    """One row of each array that has rows, cut to its first ``length`` tokens; other arrays stay as they are."""
    found = {}
    for spec in specs:
        if spec.name not in arrays:
            continue
        cuts = [
            slice(row, row + 1) if axis == interface.batch else slice(length if axis in interface.lengths else None)
            for axis in spec.shape
        ]
        found[spec.name] = np.array(arrays[spec.name][tuple(cuts)])
    return found
