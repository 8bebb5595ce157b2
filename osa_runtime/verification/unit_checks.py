"""Every part of the model by itself: fed with eager's input, compared with eager and with float64.

A fault is visible here however small its trace in the final output is, and the part that has it is known by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from osa_runtime.errors import OsaError
from osa_runtime.parity.certificate import UnitResult
from osa_runtime.parity.compare import Comparison, Tolerance, compare
from osa_runtime.parity.feeds import Case
from osa_runtime.parity.tolerances import SHARE
from osa_runtime.verification.inside.eager_insides import EagerInsides
from osa_runtime.verification.inside.insides import Array, Insides
from osa_runtime.verification.memory import chunks


def common_units(insides: Insides, eager: Insides) -> tuple[str, ...]:
    return tuple(unit for unit in eager.units if unit in set(insides.units))


def check_units(
    insides: Insides, eager: EagerInsides, oracle: EagerInsides, case: Case, tolerance: Tolerance
) -> Iterator[UnitResult]:
    """The parts that both sides show, in the order of execution, a few at a time."""
    units = common_units(insides, eager)
    for names in chunks(units, unit_bytes(eager, units, case)):
        for name, (inputs, expected) in eager.calls_of(names, case.feeds).items():
            yield _check(name, insides, inputs, expected, oracle.call(name, inputs), tolerance)


def unit_bytes(eager: EagerInsides, units: Sequence[str], case: Case) -> int:
    """What one unit's inputs and output take, judged by the largest of a few."""
    sizes = [
        sum(x.nbytes for x in inputs) + out.nbytes for inputs, out in eager.calls_of(units[:3], case.feeds).values()
    ]
    return max(sizes, default=1)


def _check(
    name: str, insides: Insides, inputs: Sequence[Array], expected: Array, truth: Array, tolerance: Tolerance
) -> UnitResult:
    try:
        actual = insides.call(name, inputs)
    except OsaError as error:
        return UnitResult(name, None, None, tolerance.rtol, False, str(error))
    mine = compare(actual, truth, tolerance, same_type=False)
    theirs = compare(expected, truth, tolerance, same_type=False)
    too_large = insides.overflow(name, inputs) if actual.dtype == np.float16 else None
    passed = _close(mine, theirs) and too_large is None
    reason = too_large or mine.reason
    return UnitResult(name, _finite(mine.error), _finite(theirs.error), tolerance.rtol, passed, reason)


def with_cumulative(
    results: Sequence[UnitResult],
    insides: Insides,
    reference: Insides,
    oracle: Insides | None,
    case: Case,
    tolerances: Mapping[str, Tolerance],
    bytes_each: int,
) -> Iterator[UnitResult]:
    """The same results with the distance at the end of each unit in a run of the whole model, a few at a time."""
    by_name = {result.unit: result for result in results}
    for names in chunks(tuple(by_name), 3 * bytes_each):
        actual, expected = insides.outputs_of(names, case.feeds), reference.outputs_of(names, case.feeds)
        truth = expected if oracle is None else oracle.outputs_of(names, case.feeds)
        for name in names:
            mine = compare(actual[name], truth[name], tolerances[name], same_type=False)
            theirs = compare(expected[name], truth[name], tolerances[name], same_type=False)
            yield dataclasses.replace(
                by_name[name],
                cumulative=_finite(mine.error),
                cumulative_tolerance=mine.tolerance,
                cumulative_passed=_close(mine, theirs),
            )


def _close(mine: Comparison, theirs: Comparison) -> bool:
    """Within the tolerance of the truth, or about as far from it as the reference is."""
    return bool(mine) or (bool(np.isfinite(mine.error)) and mine.error <= SHARE * theirs.error)


def _finite(error: float) -> float | None:
    return error if np.isfinite(error) else None
