"""``verify``: an artifact against its checkpoint, or, without one, against the definition of OSA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from osa_runtime.errors import InputError, InterfaceError
from osa_runtime.nn.depth import matrix_count
from osa_runtime.parity.certificate import Bisection, CaseResult, Check, LayerResult, UnitResult
from osa_runtime.parity.compare import Tolerance
from osa_runtime.parity.feeds import Case, sweep
from osa_runtime.parity.signature import Signature
from osa_runtime.parity.tolerances import EPS, conditioned_tolerance, relative_tolerance
from osa_runtime.runtime.interface import ANY_DTYPE
from osa_runtime.verification.bisect import bisect
from osa_runtime.verification.eager import Eager
from osa_runtime.verification.excuses import excused
from osa_runtime.verification.expectation import Expectation, check_interface, check_weights, fill_in
from osa_runtime.verification.inside.eager_insides import EagerInsides
from osa_runtime.verification.inside.insides import Array, Insides
from osa_runtime.verification.layer_checks import check_layers
from osa_runtime.verification.options import Progress, Run, VerifyOptions, certify, torch_threads
from osa_runtime.verification.row_checks import check_rows
from osa_runtime.verification.sensitivity import sensitivity
from osa_runtime.verification.subject import Subject, check_files
from osa_runtime.verification.sweep import Answers, Rules, answer, judge, reference_answer
from osa_runtime.verification.unit_checks import check_units

UNIT_DEPTH = 2  # the matrices that the signal passes in one part

LAYER_KINDS = ("random", "large", "parallel", "padded", "given")
ROW_KINDS = ("random", "mixed", "padded")


def verify(
    artifact: str | Path,
    against: str | Path | None = None,
    options: VerifyOptions | None = None,
    progress: Progress | None = None,
) -> Run:
    """Verify an exported folder or a model file, against the checkpoint ``against`` where one is given.

    A difference is a failed check in the certificate; an error means that the comparison itself was not possible.
    """
    chosen, path = options or VerifyOptions(), Path(artifact)
    tell = progress or (lambda _: None)
    expected = Expectation.of_checkpoint(Path(against)) if against is not None else None
    tell("files and interface")
    checks = [check_files(path)]
    reference = expected.describe() if expected is not None else None
    try:
        subject = Subject.open(path, chosen.where)
    except InterfaceError as error:
        checks.append(Check("interface", False, str(error)))
        described = {"name": path.name, "files": {}}
        return _early(chosen, described, reference, checks)
    with subject.session, torch_threads(chosen.where.threads, subject.parameters):
        if expected is not None:
            expected, subject = fill_in(expected, subject)
            checks.append(check_interface(expected, subject))
            if not checks[-1].passed:
                return _early(chosen, subject.describe(), reference, checks)
        return _Verification(subject, expected, chosen, tell, checks).run()


def _early(options: VerifyOptions, subject: Mapping[str, object], reference: object, checks: Sequence[Check]) -> Run:
    """Where inputs or outputs differ, there is nothing to run."""
    certificate = certify(options, kind="verify", subject=subject, reference=reference, checks=tuple(checks), cases=())
    return Run(certificate, (), {})


class _Verification:
    """One artifact, whose interface is right, with the parties that it is compared with."""

    def __init__(
        self,
        subject: Subject,
        expected: Expectation | None,
        options: VerifyOptions,
        progress: Progress,
        checks: list[Check],
    ) -> None:
        self.subject, self.expected, self.options, self.progress = subject, expected, options, progress
        self.checks, self.notes = checks, list(_notes(subject, expected))
        self.eager, self.oracle = self._eager(subject.dtype), self._eager("fp64")
        self.cases = list(self._cases())
        self.outputs: dict[str, Mapping[str, Array]] = {}

    def run(self) -> Run:
        strict = self.options.rtol is not None
        conditioned = self._conditioned if self.oracle is not None and not strict else None
        rules = Rules(self._tolerance, self.subject.largest_norm, conditioned, strict=strict)
        results = [self._case(case, rules) for case in self.cases]
        self._check_rows(results)
        insides = self.subject.insides()
        try:
            results = self._excused(results, insides)
            layers = tuple(self._layers(insides))
            units, bisection = self._units(insides, results, layers)
        finally:
            insides.close()
        certificate = certify(
            self.options,
            kind="verify",
            subject=self.subject.describe(),
            reference=self.expected.describe() if self.expected is not None else None,
            checks=tuple(self.checks),
            cases=tuple(results),
            layers=layers,
            units=units,
            bisection=bisection,
            histogram=rules.histogram.as_dict(),
            notes=tuple(self.notes),
        )
        return Run(certificate, self.cases, self.outputs)

    def _tolerance(self, norm: float) -> Tolerance:
        depth = self.expected.depth if self.expected is not None else self.subject.depth
        return self._of_table(depth, norm)

    def _conditioned(self, case: Case, output: str) -> float:
        assert self.oracle is not None
        assert self.expected is not None
        eps = EPS[self.subject.dtype] / 2
        return conditioned_tolerance(sensitivity(self.oracle.run, case.feeds, output, eps), self.expected.depth)

    def _of_table(self, depth: int, norm: float = 0.0) -> Tolerance:
        return self.options.tolerance(relative_tolerance(self.subject.format, self.subject.dtype, depth, norm))

    def _eager(self, dtype: str) -> Eager | None:
        if self.expected is None:
            return None
        names = [spec.name for spec in self.expected.inputs]
        return Eager(self.expected.model, names, self.expected.outputs, dtype)

    def _cases(self) -> Iterable[Case]:
        if self.options.inputs is not None:
            return self.options.inputs
        known = self.subject.signature
        values = known.values or (self.expected.values if self.expected is not None else {})
        return sweep(
            Signature(known.inputs, known.axes or (self.expected.axes if self.expected is not None else {}), values),
            seed=self.options.seed,
            width=self.expected.width if self.expected is not None else None,
            batches=self.options.batches,
            lengths=self.options.lengths,
        )

    def _case(self, case: Case, rules: Rules) -> CaseResult:
        self.progress(f"case {case.name}")
        mine = answer(self.subject.session, case)
        if isinstance(mine, Mapping):
            self.outputs[case.name] = mine
        theirs = self._reference(case)
        truth = None if self.oracle is None else reference_answer(self.oracle.run, case)
        norm = None if self.oracle is None else self.oracle.largest_norm
        return judge(self.subject.session, case, Answers(mine, theirs, truth, norm), rules)

    def _reference(self, case: Case) -> Mapping[str, Array] | str | None:
        if self.options.outputs is None:
            return None if self.eager is None else reference_answer(self.eager.run, case)
        for name in (case.name, case.kind):
            if name in self.options.outputs:
                return self.options.outputs[name]
        raise InputError(f"The loaded outputs have none for the case {case.name!r}; save both in one run.")

    def _check_rows(self, results: Sequence[CaseResult]) -> None:
        self.progress("independence of rows")
        for kind in ROW_KINDS:
            known = all(spec.dtype != ANY_DTYPE for spec in self.subject.inputs)
            for index in [i for i, case in enumerate(self.cases) if case.kind == kind and known][-1:]:
                tolerance = self._tolerance(results[index].norm or 0.0)
                check = check_rows(self.subject.session, self.subject.signature, self.cases[index], tolerance)
                self.checks += [check] if check else []

    def _excused(self, results: Sequence[CaseResult], insides: Insides) -> list[CaseResult]:
        subject = self.subject
        if self.oracle is not None or self.options.outputs is not None or subject.largest_norm is None:
            return list(results)
        pairs = zip(results, self.cases, strict=True)
        return [excused(result, case, insides, subject.osa, subject.dtype) for result, case in pairs]

    def _layers(self, insides: Insides) -> Iterator[LayerResult]:
        if self.subject.osa and not insides.attentions:
            self.notes.append("no call of orthogonal attention can be seen inside the artifact; none was checked")
        for number, case in enumerate(self._chosen(LAYER_KINDS) if insides.attentions else ()):
            self.progress(f"layers, {case.name}")
            yield from check_layers(insides, case, self.subject.osa, self.subject.dtype, "artifact")
            if self.eager is not None and number == 0:
                yield from check_layers(EagerInsides(self.eager, case.feeds), case, {}, self.subject.dtype, "eager")

    def _chosen(self, kinds: Sequence[str]) -> list[Case]:
        """One case of each kind, with two rows where there is one: the layers do not need more. At least one case."""
        found: dict[str, Case] = {}
        for case in sorted(self.cases, key=lambda case: [size != 2 for size in list(case.sizes.values())[:1]]):
            if case.kind in kinds:
                found.setdefault(case.kind, case)
        return list(found.values()) or self.cases[:1]

    def _units(
        self, insides: Insides, results: Sequence[CaseResult], layers: Sequence[LayerResult]
    ) -> tuple[tuple[UnitResult, ...], Bisection | None]:
        if self.expected is None or self.eager is None or self.oracle is None:
            return (), None
        case = self._chosen(("random", "given"))[0]
        self.progress(f"parts, {case.name}")
        eager, oracle = EagerInsides(self.eager, case.feeds), EagerInsides(self.oracle, case.feeds)
        tolerance = self._of_table(UNIT_DEPTH, results[self.cases.index(case)].norm or 0.0)
        units = tuple(check_units(insides, eager, oracle, case, tolerance))
        if not units:
            self.notes.append("no part of the artifact could be matched with a part of the checkpoint's model")
        good = all(check.passed for check in self.checks) and all(result.verdict != "fail" for result in results)
        good = good and all(unit.passed for unit in units) and all(layer.passed for layer in layers)
        if self.options.bisect is None or good or not units:
            return units, None
        self.progress("bisection")
        tolerances = self._tolerances_along([unit.unit for unit in units])
        return bisect(insides, eager, oracle, case, units, tolerances, self.options.bisect)

    def _tolerances_along(self, names: Sequence[str]) -> dict[str, Tolerance]:
        """The tolerance at the end of each unit, by the matrices up to there."""
        assert self.expected is not None
        depth, found = 4, {}
        for name in names:
            depth += matrix_count(self.expected.model.get_submodule(name))
            found[name] = self._of_table(depth)
        return found


def _notes(subject: Subject, expected: Expectation | None) -> Iterator[str]:
    if subject.session.placement.note:
        yield subject.session.placement.note
    if subject.where.device != "cpu":
        yield "the whole model ran on the device; its layers and parts were checked on the CPU"
    note = check_weights(expected, subject) if expected is not None else None
    if note:
        yield note
