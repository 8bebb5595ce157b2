"""Find the part of a model at which it goes wrong, and write down what reproduces it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from osa_runtime.errors import OsaError
from osa_runtime.parity.certificate import Bisection, UnitResult
from osa_runtime.parity.compare import Tolerance
from osa_runtime.parity.feeds import Case
from osa_runtime.verification.inside.eager_insides import EagerInsides
from osa_runtime.verification.inside.insides import Insides
from osa_runtime.verification.repro import write_repro
from osa_runtime.verification.unit_checks import unit_bytes, with_cumulative


def bisect(
    insides: Insides,
    eager: EagerInsides,
    oracle: EagerInsides,
    case: Case,
    units: Sequence[UnitResult],
    tolerances: Mapping[str, Tolerance],
    folder: Path | None,
) -> tuple[tuple[UnitResult, ...], Bisection]:
    """The units with their cumulative distance, and the first that is wrong: by itself, and behind which all is."""
    size = unit_bytes(eager, [unit.unit for unit in units], case)
    found = tuple(with_cumulative(units, insides, eager, oracle, case, tolerances, size))
    bisection = first_wrong(found, case)
    guilty = bisection.alone or bisection.cumulative
    if guilty is None or folder is None:
        return found, bisection
    tolerance = next(unit.tolerance for unit in found if unit.unit == guilty)
    try:
        where = write_repro(folder, insides, eager, oracle, guilty, case, tolerance)
    except OsaError as error:
        return found, dataclasses.replace(bisection, repro=f"not written: {error}")
    return found, dataclasses.replace(bisection, repro=str(where))


def first_wrong(units: Sequence[UnitResult], case: Case) -> Bisection:
    alone = next((unit.unit for unit in units if not unit.passed), None)
    behind = next((unit.unit for unit in units if unit.cumulative_passed is False), None)
    return Bisection(alone, behind, case.name)
