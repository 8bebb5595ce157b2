"""``compare``: any two artifacts on the same inputs, for instance fp16 with fp32, or TorchScript with ONNX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from osa_runtime.errors import InputError
from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.parity.certificate import Bisection, CaseResult, Check, LayerResult, UnitResult
from osa_runtime.parity.comparison import Tolerance
from osa_runtime.parity.feeds import Case, sweep
from osa_runtime.parity.judgement import Answers, ErrorHistogram, Rules, judge
from osa_runtime.parity.tolerances import EPS, Spread, moved, relative_tolerance, rounding_move_of_inputs
from osa_runtime.runtime.torch_session import torch_threads
from osa_runtime.verification.answers import answer
from osa_runtime.verification.bisect import Suspicion, first_wrong, with_cumulative
from osa_runtime.verification.cases import widened
from osa_runtime.verification.inside.model_parts import Array, ModelParts
from osa_runtime.verification.layer_checks import Party, check_layers, norms_by_row, undecided
from osa_runtime.verification.settings import Progress, Run, VerifySettings, certify, fitting_threads, not_run
from osa_runtime.verification.subject import Subject, check_files, check_precision
from osa_runtime.verification.unit_checks import Part, common_units

LAYER_KINDS = ("random", "parallel", "given")


def compare(
    artifact: str | Path,
    reference: str | Path,
    settings: VerifySettings | None = None,
    progress: Progress | None = None,
) -> Run:
    """Judge ``artifact`` by the outputs of ``reference``, within the wider of the two tolerances.

    With ``settings.where.runtime``, only the first of the two runs there.
    """
    chosen = settings or VerifySettings()
    checks = [check_files(Path(artifact)), check_files(Path(reference), "files of the reference")]
    own = dataclasses.replace(chosen.where, runtime=None)
    first, second = Subject.open(Path(artifact), chosen.where), Subject.open(Path(reference), own)
    with first.session, second.session, torch_threads(fitting_threads(chosen.where.threads, first.parameters)):
        checks += [*check_precision(first), *check_precision(second), _check_interfaces(first, second)]
        if not checks[-1].passed:
            return not_run(chosen, "compare", first.describe(), second.describe(), checks)
        return _Comparison(first, second, chosen, progress or (lambda _: None), checks).run()


class _Comparison:
    def __init__(
        self, first: Subject, second: Subject, settings: VerifySettings, progress: Progress, checks: list[Check]
    ) -> None:
        self.first, self.second, self.settings = first, second, settings
        self.progress, self.checks = progress, checks
        self.interface = self._interface()
        self.cases = list(settings.inputs or self._sweep())
        self.outputs: dict[str, Mapping[str, Array]] = {}
        self.model_parts, self.reference = first.model_parts(), second.model_parts()

    def run(self) -> Run:
        try:
            return self._run()
        finally:
            self.model_parts.close()
            self.reference.close()

    def _run(self) -> Run:
        rules = Rules(
            self._tolerance,
            self.first.interface.batch,
            self.first.range_of_norms,
            self._spread,
            reference_norm=self.second.range_of_norms,
            same_type=self.first.dtype == self.second.dtype,
            strict=self.settings.rtol is not None,
        )
        results = [self._case(case, rules) for case in self.cases]
        if self.settings.inputs is None:
            results += self._wide(rules)
        units, bisection = self._units(results)
        certificate = certify(
            self.settings,
            kind="compare",
            subject=self.first.describe(),
            reference=self.second.describe(),
            checks=tuple(self.checks),
            cases=tuple(results),
            layers=tuple(self._layers()),
            units=units,
            bisection=bisection,
            histogram=rules.histogram.as_dict(),
        )
        return Run(certificate, self.cases, self.outputs)

    def _tolerance(self, norm: float) -> Tolerance:
        return self._of_table(max(self.first.depth, self.second.depth), norm)

    def _spread(self, case: Case) -> Spread | None:
        """The spread of the more precise of the two under rounding in the precision of the other."""
        precise = self.first if EPS[self.first.dtype] < EPS[self.second.dtype] else self.second
        eps = max(EPS[self.first.dtype], EPS[self.second.dtype])
        amount = rounding_move_of_inputs(eps, max(self.first.depth, self.second.depth))

        def run(seed: int | None) -> Mapping[str, Array]:
            generator = np.random.default_rng(seed)
            feeds = {n: x if seed is None else moved(x, amount, generator) for n, x in case.feeds.items()}
            return precise.session.run(self._fed(Case(case.kind, case.sizes, feeds), precise).feeds)

        return Spread.of(run(None), run)

    def _of_table(self, depth: int, norm: float = 0.0) -> Tolerance:
        parties = (self.first, self.second)
        return self.settings.tolerance(max(relative_tolerance(p.format, p.dtype, depth, norm) for p in parties))

    def _interface(self) -> Interface:
        """The interface that both artifacts accept."""
        mine, theirs = self.first.interface, self.second.interface
        limits = {
            axis: {"min": max(mine.least(axis), theirs.least(axis))}
            | _least_limit(mine.limit(axis), theirs.limit(axis))
            for axis in {*mine.axes, *theirs.axes}
        }
        values, pixels = {**theirs.values, **mine.values}, {**theirs.pixels, **mine.pixels}
        return Interface(_narrower(mine.inputs, theirs.inputs), mine.outputs, limits, values, pixels, mine.roles)

    def _sweep(self) -> Iterator[Case]:
        settings = self.settings
        return sweep(self.interface, seed=settings.seed, batches=settings.batches, lengths=settings.lengths)

    def _wide(self, rules: Rules) -> list[CaseResult]:
        results, covered = widened(self.interface, self.cases, self.settings, partial(self._case, rules=rules))
        self.checks.append(covered)
        return results

    def _case(self, case: Case, rules: Rules) -> CaseResult:
        self.progress(f"case {case.name}")
        mine = answer(self.first.session, self._fed(case, self.first))
        if isinstance(mine, Mapping):
            self.outputs[case.name] = mine
        theirs = answer(self.second.session, self._fed(case, self.second))
        if isinstance(theirs, str):
            raise InputError(f"The reference fails on the case {case.name}: {theirs}")
        names = [spec.name for spec in self.first.session.outputs]
        trial = judge(case, Answers(mine, theirs), dataclasses.replace(rules, histogram=ErrorHistogram()), names)
        norms = None
        if case.kind in LAYER_KINDS or trial.verdict != "pass":  # costly, and only explains failures
            norms = norms_by_row(self.reference, self._fed(case, self.second))
        result = judge(case, Answers(mine, theirs, norms=norms), rules, names)
        if case.kind.startswith("scaled ") and {self.first.dtype, self.second.dtype} != {"fp32"}:
            return undecided(result, "only float64 can show how many digits fewer bits leave at this magnitude")
        return result

    def _fed(self, case: Case, subject: Subject) -> Case:
        """The inputs rounded to both types, so that both artifacts get the same numbers."""
        other = self.second if subject is self.first else self.first
        return _in_types(_in_types(case, other), subject)

    def _layers(self) -> Iterator[LayerResult]:
        parties: tuple[tuple[Subject, ModelParts, Party], ...] = (
            (self.first, self.model_parts, "artifact"),
            (self.second, self.reference, "reference"),
        )
        for subject, model_parts, party in parties:
            for kind in LAYER_KINDS:
                for case in [case for case in self.cases if case.kind == kind][:1]:
                    self.progress(f"layers of {subject.session.path}, {case.name}")
                    yield from check_layers(model_parts, self._fed(case, subject), subject.osa, subject.dtype, party)

    def _units(self, results: Sequence[CaseResult]) -> tuple[tuple[UnitResult, ...], Bisection | None]:
        """The first part after which the two differ, on the first case where they do."""
        failed = [index for index, result in enumerate(results) if result.verdict == "fail"]
        names = common_units(self.model_parts, self.reference)
        if self.settings.bisect is None or not failed or not names or self.first.dtype != self.second.dtype:
            return (), None
        self.progress("bisection")
        case, norm = self.cases[failed[0]], results[failed[0]].norm or 0.0
        suspicion = Suspicion(case, True, lambda depth: self._of_table(depth, norm))
        empty = [UnitResult(name, None, None, 0.0, True, "not fed alone") for name in names]
        parties = (self.model_parts, self.reference, self.reference)
        units = tuple(with_cumulative(empty, [Part(name, name) for name in names], parties, suspicion))
        return units, first_wrong(units, case)


def _least_limit(*limits: int | None) -> dict[str, int]:
    known = [limit for limit in limits if limit is not None]
    return {"max": min(known)} if known else {}


def _check_interfaces(first: Subject, second: Subject) -> Check:
    for kind in ("inputs", "outputs"):
        mine, theirs = getattr(first.session, kind), getattr(second.session, kind)
        if [_shape_of(spec) for spec in mine] != [_shape_of(spec) for spec in theirs]:
            ours, other = ", ".join(map(str, mine)), ", ".join(map(str, theirs))
            return Check("interface", False, f"the {kind} are {ours}, expected those of the reference: {other}")
    return Check("interface", True, "the same inputs and outputs")


def _shape_of(spec: TensorSpec) -> tuple[object, ...]:
    """Name, kind of type and rank: precision and fixed axes may differ."""
    return spec.name, np.dtype(spec.dtype).kind, len(spec.shape)


def _narrower(first: tuple[TensorSpec, ...], second: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """An axis that one of the two has fixed is fixed for both; values are made in the first one's type."""
    return tuple(
        TensorSpec(
            a.name, a.dtype, tuple(y if isinstance(y, int) else x for x, y in zip(a.shape, b.shape, strict=True))
        )
        for a, b in zip(first, second, strict=True)
    )


def _in_types(case: Case, subject: Subject) -> Case:
    types = {spec.name: spec.dtype for spec in subject.session.inputs}
    with np.errstate(over="ignore"):  # beyond the range of half precision is one of the magnitudes to try
        feeds = {name: array.astype(types[name]) if name in types else array for name, array in case.feeds.items()}
    return Case(case.kind, case.sizes, feeds)
