"""``verify``: an artifact against its checkpoint, or, without one, against the definition of OSA."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from osa_runtime.errors import InputError, InterfaceError
from osa_runtime.exporters.eager import Eager, answer_of
from osa_runtime.interface import ANY_DTYPE, Interface
from osa_runtime.parity.certificate import Bisection, CaseResult, Check, LayerResult, UnitResult
from osa_runtime.parity.comparison import Tolerance
from osa_runtime.parity.feeds import Case, sweep
from osa_runtime.parity.judgement import Answers, Rules, judge
from osa_runtime.parity.tolerances import Spread, relative_tolerance, rounding_move
from osa_runtime.quantization.activations import read_calibration
from osa_runtime.runtime.torch_session import torch_threads
from osa_runtime.sample_inputs import sample_inputs
from osa_runtime.verification.answers import answer, check_rows, reference_answers
from osa_runtime.verification.bisect import Suspicion, bisect
from osa_runtime.verification.cases import data_cases, widened
from osa_runtime.verification.expectation import Expectation, check_interface, check_weights, fill_in
from osa_runtime.verification.function_checks import FunctionCalls, functions_check
from osa_runtime.verification.inside.eager_parts import EagerParts
from osa_runtime.verification.inside.model_parts import Array, ModelParts
from osa_runtime.verification.inside.onnx_parts import OnnxParts
from osa_runtime.verification.layer_checks import check_layers, undecided_beyond_range
from osa_runtime.verification.rounded_weights import check_rounding
from osa_runtime.verification.settings import Progress, Run, VerifySettings, certify, fitting_threads, not_run
from osa_runtime.verification.structure.check import check_structure
from osa_runtime.verification.subject import Subject, check_files, check_precision
from osa_runtime.verification.unit_checks import UNIT_DEPTH, Parties, check_parts, part_cases, worst_of

UNKNOWN_WIDTH = 32  # of a head, if a custom model does not declare it

LAYER_KINDS = ("random", "large", "parallel", "padded", "given")
ROW_KINDS = ("random", "mixed", "padded")


def verify(
    artifact: str | Path,
    against: str | Path | None = None,
    settings: VerifySettings | None = None,
    progress: Progress | None = None,
    *,
    module: nn.Module | None = None,
    factory: str | None = None,
    weights: str | Path | None = None,
) -> Run:
    """Verify an exported folder or a model file, against a reference where one is given.

    The reference is the checkpoint ``against``, a ``module`` of your own, or the return value of the
    function ``factory`` (package.module:function), with the ``weights`` of a file.

    A difference is a failed check in the certificate; an error means that the comparison itself was not possible.
    """
    chosen, path = settings or VerifySettings(), Path(artifact)
    tell = progress or (lambda _: None)
    _check_reference(against, module, factory, weights)
    expected = Expectation.of_checkpoint(Path(against)) if against is not None else None
    tell("files and interface")
    checks, notes = [check_files(path)], tuple[str, ...]()
    reference = expected.describe() if expected is not None else None
    try:
        subject = Subject.open(path, chosen.where)
    except InterfaceError as error:
        checks.append(Check("interface", False, str(error)))
        described = {"name": path.name, "files": {}}
        return not_run(chosen, "verify", described, reference, checks)
    with subject.session, torch_threads(fitting_threads(chosen.where.threads, subject.parameters)):
        if chosen.calibration is not None:
            known = (against, module, factory) != (None, None, None)
            _check_calibration(chosen.calibration, subject, known=known)
        checks += check_precision(subject)
        if against is not None and any(spec.dtype == "uint8" for spec in subject.inputs):
            expected = Expectation.of_checkpoint(Path(against), pixels="uint8")
        if module is not None:
            expected = Expectation.of_module(module, subject)
        elif factory is not None:
            expected = Expectation.of_factory(factory, weights, subject)
        if expected is not None:
            reference = expected.describe()
            expected, subject = fill_in(expected, subject)
            checks.append(check_interface(expected, subject))
            if not checks[-1].passed:
                return not_run(chosen, "verify", subject.describe(), reference, checks)
            tell("structure: a fresh export")
            structure = check_structure(subject, expected, chosen.calibration)
            checks, notes = [*checks, *structure.checks], structure.notes
            if structure.rounded is not None:
                expected = dataclasses.replace(expected, model=structure.rounded, unrounded=expected.model)
        return _Verification(subject, expected, chosen, tell, checks, notes).run()


def _check_reference(against: object, module: nn.Module | None, factory: str | None, weights: object) -> None:
    kind = None if module is None else type(module).__name__
    names = {"against": against, "module": kind, "factory": factory}
    given = [f"{name}={value}" for name, value in names.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"There can be one reference, got {' and '.join(given)}.")
    if weights is not None and factory is None:
        raise InputError(f"weights={weights} goes with factory=package.module:function; others have their own weights.")


def _check_calibration(examples: Path, subject: Subject, *, known: bool) -> None:
    manifest = subject.session.manifest
    small = manifest.quantization if manifest is not None else None
    if not known or small is None or small.activations != "static":
        raise InputError(
            "calibration=… measures the ranges of a static quantisation again, on its reference; "
            f"{subject.session.path} is not such an artifact, or no reference was given. Leave it out."
        )
    assert subject.artifact is not None
    read_calibration(examples, subject.artifact)  # a fault in the file is an error, not a finding


class _Verification:
    """One artifact, whose interface is right, with the parties that it is compared with."""

    def __init__(
        self,
        subject: Subject,
        expected: Expectation | None,
        settings: VerifySettings,
        progress: Progress,
        checks: list[Check],
        notes: Sequence[str] = (),
    ) -> None:
        self.subject, self.expected, self.settings, self.progress = subject, expected, settings, progress
        self.checks, self.notes = checks, [*notes, *_notes(subject, expected)]
        self.dtype = expected.arithmetic(subject.dtype) if expected is not None else subject.dtype
        self.eager, self.oracle = self._eager(self.dtype), self._eager("fp64")
        self.cases = [*self._cases(), *self._data()]
        self.checks += self._rounding()
        self.outputs: dict[str, Mapping[str, Array]] = {}
        self.batch = dataclasses.replace(subject.session.interface, inputs=subject.inputs).batch

    def run(self) -> Run:
        strict = self.settings.rtol is not None
        rules = Rules(self._tolerance, self.batch, self.subject.range_of_norms, self._spread, strict=strict)
        results = [self._case(case, rules) for case in self.cases]
        self._check_rows(results)  # before the wide sweep: how far that goes depends on the time it takes
        if self.settings.inputs is None:
            results += self._wide(rules)
        model_parts = self.subject.model_parts()
        try:
            results = self._undecided_beyond_range(results, model_parts)
            layers = tuple(self._layers(model_parts))
            units, bisection = self._units(model_parts, results, layers)
        finally:
            model_parts.close()
        self.checks += self.subject.changes()
        certificate = certify(
            self.settings,
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

    def _spread(self, case: Case) -> Spread | None:
        """The answers in float64 on this case after changes of weights and inputs as large as rounding."""
        truth = answer_of(self.oracle, case.feeds)
        if self.oracle is None or truth is None:
            return None
        oracle, amount = self.oracle, rounding_move(self.dtype)
        coarse = self.dtype in ("w8", "w8a8")
        return Spread.of(truth, lambda seed: oracle.moved(case.feeds, amount, seed, coarse))

    def _of_table(self, depth: int, norm: float = 0.0) -> Tolerance:
        return self.settings.tolerance(relative_tolerance(self.subject.format, self.dtype, depth, norm))

    def _eager(self, dtype: str) -> Eager | None:
        if self.expected is None:
            return None
        names = [spec.name for spec in self.expected.inputs]
        return Eager(self.expected.model, names, self.expected.outputs, dtype)

    def _rounding(self) -> Iterator[Check]:
        """The check of a quantised reference on data, pictures or random inputs, whichever is closest to real use."""
        if self.expected is None or self.expected.unrounded is None or self.oracle is None:
            return
        original = Eager(self.expected.unrounded, self.oracle.inputs, self.oracle.outputs, "fp64")
        plain = [case for case in self.cases if case.kind.startswith(("random", "given"))][-1:]
        data = [case for case in self.cases if case.kind.startswith("data")][:1]
        interface = self._interface()
        if not data and interface.pixels and plain:
            sizes = plain[0].sizes
            data = [Case("strokes", sizes, sample_inputs(interface, sizes, "strokes", self.settings.seed))]
        judged = self._of_table(self.expected.depth).rtol if self.dtype == "w8a8" else None
        yield from (check_rounding(original, self.oracle, case, judged) for case in (data or plain))

    def _cases(self) -> Iterable[Case]:
        if self.settings.inputs is not None:
            return self.settings.inputs
        return sweep(
            self._interface(),
            seed=self.settings.seed,
            width=self.expected.width if self.expected is not None else None,
            batches=self.settings.batches,
            lengths=self.settings.lengths,
        )

    def _data(self) -> list[Case]:
        data = self.settings.data
        return [] if data is None else data_cases(data, self.subject.session, self._interface())

    def _interface(self) -> Interface:
        known, expected = self.subject.interface, self.expected
        axes = known.axes or (expected.axes if expected is not None else {})
        return dataclasses.replace(
            known, axes=axes, values=known.values or (expected.values if expected is not None else {})
        )

    def _wide(self, rules: Rules) -> list[CaseResult]:
        options: dict[str, Any] = {"width": self.expected and self.expected.width, "nan": self.eager is not None}
        judge = partial(self._case, rules=rules)
        results, covered = widened(self._interface(), self.cases, self.settings, judge, **options)
        self.checks.append(covered)
        return results

    def _case(self, case: Case, rules: Rules) -> CaseResult:
        self.progress(f"case {case.name}")
        mine = answer(self.subject.session, case)
        if isinstance(mine, Mapping):
            self.outputs[case.name] = mine
        theirs, refusals = self._reference(case)
        truth = answer_of(self.oracle, case.feeds)
        norms = None if self.oracle is None else self.oracle.norms
        names = [spec.name for spec in self.subject.session.outputs]
        return judge(case, Answers(mine, theirs, truth, norms, refusals), rules, names)

    def _reference(self, case: Case) -> tuple[Mapping[str, Array] | None, dict[int, str]]:
        if self.settings.outputs is None:
            return (None, {}) if self.eager is None else reference_answers(self.eager.run, case, self.batch)
        for name in (case.name, case.kind):
            if name in self.settings.outputs:
                return self.settings.outputs[name], {}
        raise InputError(f"The loaded outputs lack the case {case.name!r}; save inputs and outputs in one run.")

    def _check_rows(self, results: Sequence[CaseResult]) -> None:
        self.progress("independence of rows")
        for kind in ROW_KINDS:
            known = all(spec.dtype != ANY_DTYPE for spec in self.subject.inputs)
            for index in [i for i, case in enumerate(self.cases) if case.kind == kind and known][-1:]:
                tolerance = self._tolerance(results[index].norm or 0.0)
                check = check_rows(self.subject.session, self.subject.interface, self.cases[index], tolerance)
                self.checks += [check] if check else []

    def _undecided_beyond_range(self, results: Sequence[CaseResult], model_parts: ModelParts) -> list[CaseResult]:
        subject = self.subject
        if self.oracle is not None or self.settings.outputs is not None or subject.largest_norm is None:
            return list(results)
        pairs = zip(results, self.cases, strict=True)
        return [undecided_beyond_range(result, case, model_parts, subject.osa, subject.dtype) for result, case in pairs]

    def _layers(self, model_parts: ModelParts) -> Iterator[LayerResult]:
        if self.subject.osa and not model_parts.attentions:
            self.notes.append("no call of orthogonal attention can be seen inside the artifact; none was checked")
        for number, case in enumerate(self._chosen(LAYER_KINDS) if model_parts.attentions else ()):
            self.progress(f"layers, {case.name}")
            yield from check_layers(model_parts, case, self.subject.osa, self.subject.dtype, "artifact")
            if self.eager is not None and number == 0:
                yield from check_layers(EagerParts(self.eager, case.feeds), case, None, self.subject.dtype, "eager")

    def _chosen(self, kinds: Sequence[str]) -> list[Case]:
        """One case of each kind, with two rows if there is one, which is enough for layers. At least one case."""
        found: dict[str, Case] = {}
        for case in sorted(self.cases, key=lambda case: [size != 2 for size in list(case.sizes.values())[:1]]):
            if case.kind in kinds:
                found.setdefault(case.kind, case)
        return list(found.values()) or self.cases[:1]

    def _units(
        self, model_parts: ModelParts, results: Sequence[CaseResult], layers: Sequence[LayerResult]
    ) -> tuple[tuple[UnitResult, ...], Bisection | None]:
        """Check every part on a few cases and, if anything failed, on the failed cases."""
        if self.expected is None or self.eager is None or self.oracle is None:
            return (), None
        cases = part_cases(self.cases, 2 * (self.expected.width or UNKNOWN_WIDTH))
        eager, oracle = (EagerParts(party, cases[0].feeds) for party in (self.eager, self.oracle))
        unmoved = self.settings.rtol is not None or self.dtype in ("w8", "w8a8")
        parties = Parties(model_parts, eager, oracle, None if unmoved else rounding_move(self.dtype))
        units = list[UnitResult]()
        for case in cases:
            self.progress(f"parts, {case.name}")
            units += check_parts(parties, case, self._suspicion(case, results).tolerance(UNIT_DEPTH))
        self._check_functions(model_parts, cases, results)
        if not units:
            self.notes.append("no part of the artifact could be matched with a part of the checkpoint's model")
        wrong = {case.name for case in results if case.verdict == "fail"}
        wrong |= {unit.case for unit in units if not unit.passed} | {layer.case for layer in layers if not layer.passed}
        suspicions = [self._suspicion(case, results) for case in self.cases if case.name in wrong]
        if not units or not suspicions:
            return worst_of(units), None
        self.progress("bisection")
        found, bisection = bisect(parties, sorted(suspicions, key=lambda one: not one.whole), self.settings.bisect)
        return worst_of([*found, *units]), bisection

    def _check_functions(self, parts: ModelParts, cases: Sequence[Case], results: Sequence[CaseResult]) -> None:
        """Feed the functions of modules alone, on the cases on which parts are fed."""
        if not isinstance(parts, OnnxParts) or self.eager is None or self.oracle is None:
            return
        calls, found = FunctionCalls(self.subject.session.path, parts), list[UnitResult]()
        for case in cases if calls.functions else ():
            self.progress(f"functions, {case.name}")
            found += calls.check(self.eager, self.oracle, case, self._suspicion(case, results).tolerance)
        self.checks += [functions_check(found)] if found else []

    def _suspicion(self, case: Case, results: Sequence[CaseResult]) -> Suspicion:
        result = next(result for one, result in zip(self.cases, results, strict=True) if one is case)
        norm = result.norm or 0.0
        return Suspicion(case, result.verdict == "fail", lambda depth: self._of_table(depth, norm))


def _notes(subject: Subject, expected: Expectation | None) -> Iterator[str]:
    if subject.session.placement.note:
        yield subject.session.placement.note
    if subject.where.device != "cpu":
        yield "the whole model ran on the device; its layers and parts were checked on the CPU"
    note = check_weights(expected, subject) if expected is not None else None
    if note:
        yield note
