"""Three parties on every case: the artifact in its runtime, eager in the same precision, and float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from osa_runtime.errors import ExponentRangeError, OsaError
from osa_runtime.parity.certificate import CaseResult, OutputResult, Verdict
from osa_runtime.parity.compare import Comparison, Tolerance, compare
from osa_runtime.parity.feeds import Case
from osa_runtime.parity.histogram import ErrorHistogram
from osa_runtime.parity.tolerances import LOST, SHARE
from osa_runtime.runtime.session import Session
from osa_runtime.verification.inside.insides import Array

Outputs = Mapping[str, Array]


@dataclass(frozen=True)
class Answers:
    """What the parties said on one case. A party that refused the input, or failed, has a reason in its place."""

    artifact: Outputs | str
    eager: Outputs | str | None = None
    oracle: Outputs | str | None = None
    norm: float | None = None


@dataclass(frozen=True)
class Rules:
    """How an output is judged: the tolerance at a given ‖S‖, and the ‖S‖ beyond which NaN is the right answer."""

    tolerance: Callable[[float], Tolerance]
    largest_norm: float | None = None
    conditioned: Callable[[Case, str], float] | None = None  # the tolerance by what the model amplifies, if known
    same_type: bool = True
    strict: bool = False  # the user's own tolerance: neither eager's distance nor amplified rounding excuses more
    histogram: ErrorHistogram = field(default_factory=ErrorHistogram)


def answer(session: Session, case: Case) -> Outputs | str:
    try:
        return session.run(case.feeds)
    except OsaError as error:
        return f"it does not run: {error}"


def reference_answer(run: Callable[[Mapping[str, Array]], Outputs], case: Case) -> Outputs | str:
    try:
        return run(case.feeds)
    except ExponentRangeError as error:
        return str(error)


def judge(session: Session, case: Case, answers: Answers, rules: Rules) -> CaseResult:
    """The verdict on each output of a case."""
    tolerance = rules.tolerance(answers.norm or 0.0)
    if isinstance(answers.artifact, str):
        failed = OutputResult("", "fail", answers.artifact, tolerance.rtol)
        return CaseResult(case.kind, case.sizes, answers.norm, (failed,))
    expected = _names(answers, session)
    results = tuple(_judge_output(name, case, answers, rules, tolerance) for name in expected)
    extra = [name for name in answers.artifact if name not in expected]
    results += tuple(OutputResult(n, "fail", "no such output is expected", tolerance.rtol) for n in extra)
    return CaseResult(case.kind, case.sizes, answers.norm, results)


def _names(answers: Answers, session: Session) -> list[str]:
    for reference in (answers.eager, answers.oracle):
        if isinstance(reference, Mapping):
            return list(reference)
    return [spec.name for spec in session.outputs]


def _judge_output(name: str, case: Case, answers: Answers, rules: Rules, tolerance: Tolerance) -> OutputResult:
    assert not isinstance(answers.artifact, str)
    if name not in answers.artifact:
        present = ", ".join(answers.artifact)
        return OutputResult(name, "fail", f"this output is missing; there is {present}", tolerance.rtol)
    actual = answers.artifact[name]
    if isinstance(answers.eager, str) or isinstance(answers.oracle, str):
        refusal = next(said for said in (answers.eager, answers.oracle) if isinstance(said, str))
        return _judge_refusal(name, actual, refusal, tolerance)
    finite = bool(np.isfinite(actual).all()) if actual.dtype.kind == "f" else True
    if not finite and _beyond(answers.norm, rules.largest_norm):
        reason = f"NaN, as it must be: ‖S‖ is up to {answers.norm:.3g}, and it is exported for {rules.largest_norm:.3g}"
        return OutputResult(name, "undecided", reason, tolerance.rtol)
    if answers.eager is None:
        verdict: Verdict = "pass" if finite else "fail"
        broken = int(np.count_nonzero(~np.isfinite(actual))) if not finite else 0
        reason = "finite" if finite else f"{broken} of {actual.size} values are NaN or Inf"
        return OutputResult(name, verdict, reason, tolerance.rtol)
    return _judge_values(name, case, actual, answers, rules, tolerance)


def _judge_refusal(name: str, actual: Array, refusal: str, tolerance: Tolerance) -> OutputResult:
    """Eager refuses the input with an error; a graph cannot, and must give NaN."""
    if np.isfinite(actual).all():
        return OutputResult(
            name, "fail", f"eager refuses this input and the artifact does not: {refusal}", tolerance.rtol
        )
    return OutputResult(name, "undecided", f"NaN, as it must be where eager refuses: {refusal}", tolerance.rtol)


def _beyond(norm: float | None, largest: float | None) -> bool:
    """The bound that a graph computes for ‖S‖ may be four times ‖S‖."""
    return norm is not None and largest is not None and 4 * norm > largest


def _judge_values(
    name: str, case: Case, actual: Array, answers: Answers, rules: Rules, tolerance: Tolerance
) -> OutputResult:
    assert isinstance(answers.eager, Mapping)
    eager = answers.eager[name]
    oracle = answers.oracle[name] if isinstance(answers.oracle, Mapping) else None
    classes = name == "logits"
    parity = compare(actual, eager, tolerance, same_type=rules.same_type, classes=classes)
    if oracle is None or parity.metrics is None:
        rules.histogram.add(actual, eager)
        if oracle is not None and _overflows_alike(actual, eager, oracle):
            reason = "eager in this precision gives NaN or Inf, too, where float64 does not: this input is beyond it"
            return _result(name, parity, "undecided", reason)
        verdict, reason = _reconsidered("pass" if parity else "fail", parity.reason, case, name, parity, rules)
        return _result(name, parity, verdict, reason, parity=parity)
    rules.histogram.add(actual, oracle)
    mine = compare(actual, oracle, tolerance, same_type=False, classes=classes)
    theirs = compare(eager, oracle, tolerance, same_type=False, classes=classes)
    verdict, reason = _reconsidered(*_verdict(mine, theirs, rules), case, name, mine, rules)
    return _result(name, mine, verdict, reason, parity=parity, artifact=mine, eager=theirs)


def _overflows_alike(actual: Array, eager: Array, oracle: Array) -> bool:
    same = actual.shape == eager.shape == oracle.shape and actual.dtype == eager.dtype
    broken = [bool(np.isfinite(x).all()) for x in (actual, eager, oracle)]
    return same and broken == [False, False, True]


def _verdict(mine: Comparison, theirs: Comparison, rules: Rules) -> tuple[Verdict, str]:
    """Within the tolerance of the truth, or about as far from it as eager is, where eager is beyond it, too."""
    if mine:
        return "pass", mine.reason
    if rules.strict:
        return "fail", mine.reason
    if theirs.error > LOST:
        return "undecided", f"eager itself is {theirs.error:.2g} away from float64: this input has no digits to compare"
    reason = f"{mine.reason}; eager's own distance from float64 is {theirs.error:.2g}"
    return ("pass" if mine.error <= SHARE * theirs.error else "fail"), reason


def _reconsidered(
    verdict: Verdict, reason: str, case: Case, name: str, mine: Comparison, rules: Rules
) -> tuple[Verdict, str]:
    """Some inputs make a deep model amplify every rounding; how much it does is measured only where it matters."""
    if verdict != "fail" or rules.conditioned is None or mine.metrics is None:
        return verdict, reason
    limit = rules.conditioned(case, name)
    if limit > LOST:
        return "undecided", f"{reason}; but a rounding of the inputs alone makes {limit:.2g}: no digits to compare"
    if mine.error <= limit:
        return "pass", f"{reason}; a rounding of the inputs is amplified, so that up to {limit:.2g} is rounding"
    return "fail", f"{reason}; rounding, as this model amplifies it, explains up to {limit:.2g}"


def _result(
    name: str, counted: Comparison, verdict: Verdict, reason: str | None = None, **parties: Comparison
) -> OutputResult:
    metrics: dict[str, Any] = {
        party: comparison.metrics.as_dict() if comparison.metrics else None for party, comparison in parties.items()
    }
    needed = counted.error if np.isfinite(counted.error) else None
    return OutputResult(name, verdict, reason or counted.reason, counted.tolerance, needed, **metrics)
