"""Find the part of a model at which it goes wrong, on a case on which it does, and write down what reproduces it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from osa_runtime.errors import OsaError
from osa_runtime.parity.certificate import Bisection, UnitResult
from osa_runtime.parity.compare import Tolerance
from osa_runtime.parity.feeds import Case
from osa_runtime.verification.inside.insides import Array, Insides
from osa_runtime.verification.memory import chunks
from osa_runtime.verification.parts import Part, partition
from osa_runtime.verification.repro import write_repro
from osa_runtime.verification.unit_checks import UNIT_DEPTH, Parties, behind, check_parts

MOST_CASES = 6  # on which a part is looked for


@dataclass(frozen=True)
class Suspicion:
    """A case on which the whole model is wrong, or a part of it; and the tolerance there, by the number of matrices."""

    case: Case
    whole: bool
    tolerance: Callable[[int], Tolerance]


def bisect(
    parties: Parties, suspicions: Sequence[Suspicion], folder: Path | None
) -> tuple[tuple[UnitResult, ...], Bisection | None]:
    """All parts on the first of these cases on which one is wrong by itself, and that part.

    Where none is on any of them, the first case is shown, and nobody is blamed.
    """
    chosen: tuple[Suspicion, list[UnitResult]] | None = None
    for suspicion in suspicions[:MOST_CASES]:
        try:
            results = list(check_parts(parties, suspicion.case, suspicion.tolerance(UNIT_DEPTH)))
        except OsaError:
            continue  # eager itself refuses this input
        wrong = not all(result.passed for result in results)
        if wrong or chosen is None:
            chosen = (suspicion, results)
        if wrong:
            break
    if chosen is None or not chosen[1]:
        return (), None
    suspicion, results = chosen
    found = tuple(_with_cumulative(results, parties, suspicion))
    return found, _reproduced(first_wrong(found, suspicion.case), found, parties, suspicion, folder)


def first_wrong(units: Sequence[UnitResult], case: Case) -> Bisection:
    alone = next((unit.unit for unit in units if not unit.passed), None)
    wrong_behind = next((unit.unit for unit in units if unit.cumulative_passed is False), None)
    return Bisection(alone, wrong_behind, case.name)


def _reproduced(
    bisection: Bisection, units: Sequence[UnitResult], parties: Parties, suspicion: Suspicion, folder: Path | None
) -> Bisection:
    """Only what is wrong by itself can be shown by itself."""
    if bisection.alone is None or folder is None:
        return bisection
    result = next(unit for unit in units if unit.unit == bisection.alone)
    part = next(part for part in partition(parties.insides, parties.eager) if part.name == bisection.alone)
    limit = Tolerance(result.tolerance, suspicion.tolerance(UNIT_DEPTH).atol)
    try:
        where = write_repro(folder, parties, part, suspicion.case, limit)
    except OsaError as error:
        return dataclasses.replace(bisection, repro=f"not written: {error}")
    return dataclasses.replace(bisection, repro=str(where))


def _with_cumulative(results: Sequence[UnitResult], parties: Parties, suspicion: Suspicion) -> Iterator[UnitResult]:
    """With the distance at the end of each part in a run of the whole model, a few parts at a time."""
    parts = {part.name: part for part in partition(parties.insides, parties.eager)}
    feeds, numbered = suspicion.case.feeds, dict(enumerate(results))
    for numbers in chunks(tuple(numbered), _signal_bytes(parties, list(parts.values()), feeds)):
        some = [parts[numbered[number].unit] for number in numbers]
        try:
            values = [_signals(party, some, feeds) for party in (parties.insides, parties.eager, parties.oracle)]
        except OsaError:
            yield from (numbered[number] for number in numbers)
            continue
        for number, part in zip(numbers, some, strict=True):
            if isinstance(part.end, int):  # the end of all is what the case is judged by
                yield dataclasses.replace(numbered[number], cumulative_passed=not suspicion.whole)
            else:
                actual, expected, truth = (found[part.name] for found in values)
                limit = suspicion.tolerance(4 + UNIT_DEPTH * number)
                yield behind(numbered[number], actual, expected, truth, limit)


def _signal_bytes(parties: Parties, parts: Sequence[Part], feeds: Mapping[str, Array]) -> int:
    """What one signal takes in all parties, judged by the largest of a few."""
    units = [part.unit for part in parts if part.unit][:3]
    return 4 * max((x.nbytes for x in parties.eager.outputs_of(units, feeds).values()), default=1)


def _signals(party: Insides, parts: Sequence[Part], feeds: Mapping[str, Array]) -> dict[str, Array]:
    units, ends = [part.unit for part in parts if part.unit], [part.end for part in parts if isinstance(part.end, str)]
    outputs = party.outputs_of(units, feeds) if units else {}
    inputs = party.inputs_of(ends, feeds) if ends else {}
    found = {part.name: outputs[part.unit] for part in parts if part.unit}
    return found | {part.name: inputs[part.end] for part in parts if isinstance(part.end, str)}
