"""Every part of the model by itself: fed with eager's input, compared with eager and with float64.

The parts are modules and the operators between them, and together they are the whole model. A fault shows here however
small its trace in the final output is, and the part that has it is known by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from osa_runtime.errors import OsaError
from osa_runtime.parity.certificate import UnitResult
from osa_runtime.parity.comparison import Comparison, Tolerance, compare_arrays
from osa_runtime.parity.feeds import Case
from osa_runtime.parity.tolerances import EAGER_SHARE, NO_DIGITS_LEFT, SAMPLES
from osa_runtime.verification.inside.eager_parts import EagerParts
from osa_runtime.verification.inside.model_parts import Array, Calls, Glue, ModelParts

ORDINARY = ("random", "padded", "given")


@dataclass(frozen=True)
class Part:
    """A module that both sides show (``end`` is None), or the operators before its input or before an output.

    Positions, residual sums and pooling are such operators: ``embed → stack.blocks.0.attention``.
    """

    name: str
    unit: str = ""
    end: str | int | None = None


def common_units(model_parts: ModelParts, eager: ModelParts) -> tuple[str, ...]:
    return tuple(unit for unit in eager.units if unit in set(model_parts.units))


def innermost(units: Sequence[str]) -> tuple[str, ...]:
    return tuple(unit for unit in units if not any(other.startswith(f"{unit}.") for other in units))


def partition(model_parts: ModelParts, eager: EagerParts) -> tuple[Part, ...]:
    """The parts in the order of execution. A module that only eager shows belongs to the part before the next."""
    return tuple(_parts(innermost(common_units(model_parts, eager)), eager))


def _parts(shared: Sequence[str], eager: EagerParts) -> Iterator[Part]:
    start, hidden = ", ".join(eager.party.inputs), list[str]()
    for unit in innermost(eager.units):
        if unit in shared:
            yield Part(_named_between(start, unit, hidden), end=unit)
            yield Part(unit, unit)
            start, hidden = unit, []
        elif not any(other.startswith(f"{unit}.") or unit.startswith(f"{other}.") for other in shared):
            hidden.append(unit)
    for number, output in enumerate(eager.party.outputs):
        yield Part(_named_between(start, output, hidden), end=number)


def _named_between(start: str, end: str, hidden: Sequence[str]) -> str:
    return f"{start} → {end}" + (f" (with {', '.join(hidden)})" if hidden else "")


def part_cases(cases: Sequence[Case], most_dense: int) -> list[Case]:
    """One case for each path through the parts: both forms, with and without padding. At least one case."""
    found: dict[tuple[bool, bool], Case] = {}
    for case in sorted(cases, key=_preference):
        if all(np.isfinite(x).all() for x in case.feeds.values() if x.dtype.kind == "f"):
            long = max(list(case.sizes.values())[1:], default=0) > most_dense
            padded = any(not x.all() for x in case.feeds.values() if x.dtype == np.bool_ and x.ndim > 1)
            found.setdefault((long, padded), case)
    return list(found.values()) or list(cases[:1])


def _preference(case: Case) -> tuple[bool, bool, int]:
    """Sort key: ordinary values, several rows, and no more of them than needed."""
    rows = next(iter(case.sizes.values()), 1)
    return case.kind not in ORDINARY, rows < 2, sum(x.size for x in case.feeds.values())


UNIT_DEPTH = 2  # the matrices that the signal passes in one part
NEGLIGIBLE = 1e-3  # of the largest row


@dataclass(frozen=True)
class Parties:
    """The artifact's parts, those of eager in the same precision, and those of float64.

    ``move`` is how much rounding changes weights and inputs; None if amplified rounding must not explain a distance.
    """

    model_parts: ModelParts
    eager: EagerParts
    oracle: EagerParts
    move: float | None = None


def check_parts(parties: Parties, case: Case, tolerance: Tolerance) -> Iterator[UnitResult]:
    """Check all parts on one case, in the order of execution."""
    parts = partition(parties.model_parts, parties.eager)
    calls = parties.eager.calls_of([part.unit for part in parts if part.unit], case.feeds)
    if not calls:
        return
    between = _BetweenModules(parties, calls, case)
    for part in parts:
        if part.unit:
            yield _check_unit(part, parties, calls[part.unit], case, tolerance)
        else:
            yield from between.check(part, tolerance)


def worst_of(results: Iterable[UnitResult]) -> tuple[UnitResult, ...]:
    """The first failed result of each part, or the one closest to its limit; parts in the order of execution."""
    found: dict[str, list[UnitResult]] = {}
    for result in results:
        found.setdefault(result.unit, []).append(result)
    return tuple(min(same, key=_rank) for same in found.values())


def _rank(result: UnitResult) -> tuple[bool, float]:
    return result.passed, -(result.alone or 0.0) / max(result.tolerance, 1e-300) if result.passed else 0.0


class _BetweenModules:
    """The values between the modules, in one run of each party."""

    def __init__(self, parties: Parties, calls: Calls, case: Case) -> None:
        self.case, self.calls = case, calls
        self.truth = parties.oracle.between(calls, case.feeds)
        outputs = parties.eager.party.run(case.feeds)
        self.eager = Glue(
            {unit: inputs[0] for unit, (inputs, _) in calls.items()},
            tuple(outputs[name] for name in parties.eager.party.outputs),
            {unit: mask for unit, (inputs, _) in calls.items() for mask in inputs[1:]},
        )
        try:
            self.actual: Glue | str = parties.model_parts.between(calls, case.feeds)
        except OsaError as error:
            self.actual = str(error)

    def check(self, part: Part, tolerance: Tolerance) -> Iterator[UnitResult]:
        assert part.end is not None
        if isinstance(self.actual, str):
            yield UnitResult(part.name, None, None, tolerance.rtol, False, self.actual, case=self.case.name)
            return
        expected, truth, actual = (value_at(glue, part.end) for glue in (self.eager, self.truth, self.actual))
        masked = self._mask_difference(part.end, self.actual)
        if masked:
            yield UnitResult(part.name, None, None, tolerance.rtol, False, masked, case=self.case.name)
        elif _same(actual, expected) and _same(expected, truth):
            return  # nothing is computed between the two
        yield judged(part.name, actual, expected, truth, self.case, tolerance)

    def _mask_difference(self, end: str | int, actual: Glue) -> str:
        if isinstance(end, int) or end not in actual.masks or end not in self.eager.masks:
            return ""
        mine, theirs = actual.masks[end], self.eager.masks[end]
        if mine.size != theirs.size:
            return f"the mask of {end} has the shape {mine.shape}, expected {theirs.shape}"
        wrong = int(np.count_nonzero(mine.reshape(theirs.shape) != theirs))
        return f"{wrong} of {theirs.size} values of the mask of {end} are wrong" if wrong else ""


def value_at(glue: Glue, end: str | int) -> Array:
    return glue.outputs[end] if isinstance(end, int) else glue.inputs[end]


def _same(first: Array, second: Array) -> bool:
    return first.shape == second.shape and np.array_equal(first, second, equal_nan=first.dtype.kind == "f")


def _check_unit(
    part: Part, parties: Parties, call: tuple[tuple[Array, ...], Array], case: Case, tolerance: Tolerance
) -> UnitResult:
    inputs, expected = call
    try:
        actual = parties.model_parts.call(part.unit, inputs, case.feeds)
        too_large = parties.model_parts.overflow(part.unit, inputs) if actual.dtype == np.float16 else None
    except OsaError as error:
        return UnitResult(part.name, None, None, tolerance.rtol, False, str(error), case=case.name)
    truth = parties.oracle.call(part.unit, inputs)
    result = judged(part.name, actual, expected, truth, case, tolerance)
    if too_large is not None:
        return dataclasses.replace(result, passed=False, reason=too_large)
    return result if result.passed else _reconsidered(result, part, parties, inputs)


def judged(name: str, actual: Array, expected: Array, truth: Array, case: Case, tolerance: Tolerance) -> UnitResult:
    """The result, passed within the tolerance of the truth, or about as far from it as eager is."""
    mine, theirs = (compare_with(values, truth, tolerance) for values in (actual, expected))
    limit = max(tolerance.rtol, EAGER_SHARE * theirs.error) if np.isfinite(theirs.error) else tolerance.rtol
    passed = bool(mine.error <= limit)
    return UnitResult(name, _finite(mine.error), _finite(theirs.error), limit, passed, mine.reason, case=case.name)


def _reconsidered(result: UnitResult, part: Part, parties: Parties, inputs: Sequence[Array]) -> UnitResult:
    """The same result, passed if the part amplifies any rounding of its input as much."""
    if result.alone is None or parties.move is None:
        return result
    truth, amount = parties.oracle.call(part.unit, inputs), parties.move
    changed = (parties.oracle.moved_call(part.unit, inputs, amount, seed) for seed in range(SAMPLES))
    limit = max(compare_with(values, truth, Tolerance(0.0)).error for values in changed)
    if not result.alone <= limit < NO_DIGITS_LEFT:
        return result
    reason = f"{result.reason}; rounding, as this part amplifies it, explains up to {limit:.2g}"
    return dataclasses.replace(result, tolerance=limit, passed=True, reason=reason)


def compare_with(actual: Array, truth: Array, tolerance: Tolerance) -> Comparison:
    """Compare; NaN must be where float64 has NaN (or Inf, which a graph may not distinguish), and nowhere else."""
    broken = ~np.isfinite(truth)
    if actual.shape != truth.shape:
        return compare_arrays(actual, truth, tolerance, same_type=False)
    if not broken.any():
        row = _worst_row(actual, truth)
        return compare_arrays(actual[row], truth[row], tolerance, same_type=False)
    wrong = int(np.count_nonzero(np.isfinite(actual) == broken))
    if wrong:
        return Comparison(False, np.inf, tolerance.rtol, f"{wrong} of {truth.size} values are NaN on one side only")
    return compare_arrays(actual[~broken], truth[~broken], tolerance, same_type=False)


def _worst_row(actual: Array, truth: Array) -> slice:
    """The row with the largest error for its size: a row of large values must not hide a fault in another.

    Rows that are negligible next to the largest row are scaled by it: they hold nothing but its rounding.
    """
    if truth.ndim < 2 or not truth.size or not np.isfinite(actual).all():
        return slice(None)
    rows = np.abs(truth.astype(np.float64)).reshape(len(truth), -1).max(1)
    wrong = np.abs(actual.astype(np.float64) - truth).reshape(len(truth), -1).max(1)
    worst = int(np.argmax(wrong / np.maximum(rows, NEGLIGIBLE * rows.max() + 1e-300)))
    return slice(None) if rows[worst] < NEGLIGIBLE * rows.max() else slice(worst, worst + 1)


def behind(result: UnitResult, actual: Array, expected: Array, truth: Array, tolerance: Tolerance) -> UnitResult:
    mine, theirs = (compare_with(values, truth, tolerance) for values in (actual, expected))
    close = bool(mine) or (bool(np.isfinite(mine.error)) and mine.error <= EAGER_SHARE * theirs.error)
    return dataclasses.replace(
        result, cumulative=_finite(mine.error), cumulative_tolerance=mine.tolerance, cumulative_passed=close
    )


def _finite(error: float) -> float | None:
    return error if np.isfinite(error) else None
