"""Rows of a batch must not know of each other: each alone, cut to its real length, gives what it gave in the batch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from osa_runtime.errors import OsaError
from osa_runtime.parity.certificate import Check
from osa_runtime.parity.compare import Tolerance, compare
from osa_runtime.parity.feeds import Case, Signature
from osa_runtime.runtime.session import Session
from osa_runtime.verification.inside.insides import Array

MOST_ROWS = 3


def check_rows(session: Session, signature: Signature, case: Case, tolerance: Tolerance) -> Check | None:
    """None where it cannot be asked: a fixed batch, one row, or NaN in the batch, which other checks report."""
    batch = signature.names[:1]
    if not batch or case.sizes[batch[0]] < 2:
        return None
    name = f"rows ({case.kind})"
    try:
        together = session.run(case.feeds)
        if not all(np.isfinite(x).all() for x in together.values()):
            return None
        worst = _worst(session, signature, case, together, tolerance)
    except OsaError as error:
        return Check(name, False, str(error))
    passed = worst[0] <= tolerance.rtol
    said = "each row alone gives what it gives in a batch" if passed else f"row {worst[1]} alone gives something else"
    return Check(name, passed, f"{said}: relative error {worst[0]:.2g}, tolerance {tolerance.rtol:.2g}")


def _worst(
    session: Session, signature: Signature, case: Case, together: Mapping[str, Array], tolerance: Tolerance
) -> tuple[float, int]:
    rows = case.sizes[signature.names[0]]
    found = []
    for row in sorted({0, rows // 2, rows - 1})[:MOST_ROWS]:
        length = _real_length(signature, case, row)
        alone = session.run({name: _cut(array[row : row + 1], case, length) for name, array in case.feeds.items()})
        for name, expected in together.items():
            mine = compare(alone[name], _cut(expected[row : row + 1], case, length), tolerance)
            found.append((mine.error, row))
    return max(found)


def _real_length(signature: Signature, case: Case, row: int) -> int | None:
    """How many tokens of the row are real, where the artifact takes other lengths."""
    mask = signature.mask
    if mask is None or len(signature.names) < 2:
        return None
    return int(case.feeds[mask][row].sum())


def _cut(array: Array, case: Case, length: int | None) -> Array:
    tokens = list(case.sizes.values())[1] if len(case.sizes) > 1 else None
    if length is None or array.ndim < 2 or array.shape[1] != tokens:
        return array
    return array[:, :length]
