"""The judgement of exports and verification: float64 decides, and the effect of rounding is measured.

An output is judged row by row: neither a row of large values nor one without digits may hide a fault in another.
The verdict on an output is that on its worst row; an output without numbers to compare, since all must be NaN, is
undecided.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.parity.certificate import CaseResult, OutputResult
from osa_runtime.parity.comparison import Tolerance, measure
from osa_runtime.parity.feeds import Case
from osa_runtime.parity.row_judgement import Finding, Row, RowLimits, judge_row
from osa_runtime.parity.tolerances import Spread

Array = NDArray[Any]
Outputs = Mapping[str, Array]


class ErrorHistogram:
    """Counts of |artifact − reference| relative to the largest reference value, by decade."""

    LOWEST, HIGHEST = -12, 1

    def __init__(self) -> None:
        self.edges = np.arange(self.LOWEST, self.HIGHEST + 0.25, 0.25)
        self.counts = np.zeros(len(self.edges) - 1, np.int64)

    def add(self, actual: NDArray[Any], expected: NDArray[Any]) -> None:
        a, b = actual.astype(np.float64), expected.astype(np.float64)
        if a.shape != b.shape or not a.size or not np.isfinite(a).all() or not np.isfinite(b).all():
            return
        relative = np.abs(a - b) / max(float(np.abs(b).max()), 1e-300)
        logs = np.log10(np.maximum(relative, 10.0**self.LOWEST))
        self.counts += np.histogram(np.clip(logs, self.LOWEST, self.HIGHEST - 1e-9), self.edges)[0]

    def as_dict(self) -> dict[str, list[float]]:
        return {"log10_edges": self.edges.tolist(), "counts": self.counts.tolist()}


@dataclass(frozen=True)
class Answers:
    """The answers of the parties to one case; a string in place of answers is the reason why there are none.

    ``norms`` has ‖S‖₂ by row, or one number for all. ``refusals`` are the rows that eager refuses, and why.
    """

    artifact: Outputs | str
    eager: Outputs | None = None
    oracle: Outputs | None = None
    norms: Array | None = None
    refusals: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rules:
    """The rules for judging an output: the tolerance at a given ‖S‖, and the ‖S‖ beyond which NaN is the right answer.

    ``batch`` is the axis of the rows, ``spread`` measures the effect of rounding on a case. ``reference_norm`` is the
    range of a reference that is an artifact itself, and may return NaN beyond it.
    """

    tolerance: Callable[[float], Tolerance]
    batch: str | None = None
    largest_norm: float | None = None
    spread: Callable[[Case], Spread | None] | None = None
    same_type: bool = True
    reference_norm: float | None = None
    strict: bool = False  # the user's own tolerance: neither eager's distance nor amplified rounding extends it
    histogram: ErrorHistogram = field(default_factory=ErrorHistogram)


def judge(case: Case, answers: Answers, rules: Rules, names: Sequence[str]) -> CaseResult:
    """The verdict on each output; ``names`` are the outputs of the artifact, for a case without a reference."""
    norm = _largest(answers.norms)
    tolerance = rules.tolerance(norm or 0.0)
    if isinstance(answers.artifact, str):
        failed = OutputResult("", "fail", answers.artifact, tolerance.rtol)
        return CaseResult(case.kind, case.sizes, norm, (failed,))
    expected = next((list(party) for party in (answers.eager, answers.oracle) if party is not None), list(names))
    measured = functools.cache(lambda: rules.spread(case) if rules.spread is not None else None)
    results = [_judge_output(name, case, answers, rules, measured) for name in expected]
    extra = [name for name in answers.artifact if name not in expected]
    results += [OutputResult(name, "fail", "no such output is expected", tolerance.rtol) for name in extra]
    return CaseResult(case.kind, case.sizes, norm, tuple(results))


def _judge_output(
    name: str, case: Case, answers: Answers, rules: Rules, measured: Callable[[], Spread | None]
) -> OutputResult:
    assert not isinstance(answers.artifact, str)
    wrong = _mismatch(name, answers, rules.same_type)
    if wrong is not None:
        return OutputResult(name, "fail", wrong, rules.tolerance(_largest(answers.norms) or 0.0).rtol)
    rows = _rows(name, case, answers, rules)
    findings = []
    for row in rows:
        limits = RowLimits(rules.tolerance(row.norm), rules.largest_norm, rules.strict, rules.reference_norm)
        findings.append(judge_row(row, limits, functools.partial(_spread_of_row, measured, name, row.place)))
    if not findings:
        return OutputResult(name, "pass", "no values", rules.tolerance(0.0).rtol)
    worst = max(range(len(rows)), key=lambda index: _severity(findings[index]))
    return _result(name, answers, rules, rows, findings, worst)


def _largest(norms: Array | None) -> float | None:
    """The largest finite norm; None if there is none."""
    finite: Array = np.zeros(0) if norms is None else norms[np.isfinite(norms)]
    return float(np.max(finite)) if len(finite) else None


def _mismatch(name: str, answers: Answers, same_type: bool) -> str | None:
    assert not isinstance(answers.artifact, str)
    if name not in answers.artifact:
        return f"this output is missing; there is {', '.join(answers.artifact)}"
    actual = answers.artifact[name]
    for party, typed in ((answers.eager, same_type), (answers.oracle, False)):
        if party is None:
            continue
        if typed and actual.dtype != party[name].dtype:
            return f"type {actual.dtype}, expected {party[name].dtype}"
        if actual.shape != party[name].shape:
            return f"shape {actual.shape}, expected {party[name].shape}"
    return None


def _rows(name: str, case: Case, answers: Answers, rules: Rules) -> list[Row]:
    """The output cut into its rows; an output without the axis of the rows is one row."""
    assert not isinstance(answers.artifact, str)
    count = case.sizes.get(rules.batch or "")
    actual = answers.artifact[name]
    if not actual.size:
        return []
    if count is None or actual.ndim == 0 or actual.shape[0] != count:
        refusal = next(iter(answers.refusals.values()), None)
        return [_row(name, answers, slice(None), None, _largest(answers.norms), refusal)]
    return [
        _row(name, answers, slice(index, index + 1), index, _norm_at(answers.norms, index), answers.refusals.get(index))
        for index in range(count)
    ]


def _row(name: str, answers: Answers, cut: slice, place: int | None, norm: float | None, refusal: str | None) -> Row:
    assert not isinstance(answers.artifact, str)
    eager = None if answers.eager is None else answers.eager[name]
    oracle = None if answers.oracle is None else answers.oracle[name]
    actual = answers.artifact[name]
    shown = any(_is_broken(other, cut) for other in answers.artifact.values())
    return Row(
        place=place,
        artifact=_flat(actual, cut),
        eager=None if eager is None else _flat(eager, cut),
        oracle=None if oracle is None else _flat(oracle, cut),
        norm=norm or 0.0,
        refusal=refusal,
        whole=actual.dtype.kind in "biu",
        shown=shown,
    )


def _flat(array: Array, cut: slice) -> NDArray[np.float64]:
    return (array[cut] if array.ndim else array).astype(np.float64).reshape(-1)


def _is_broken(array: Array, cut: slice) -> bool:
    return array.dtype.kind == "f" and not bool(np.isfinite(_flat(array, cut)).all())


def _norm_at(norms: Array | None, index: int) -> float | None:
    if norms is None:
        return None
    norm = float(norms[index] if index < norms.size else norms.max())
    return norm if np.isfinite(norm) else None


def _spread_of_row(measured: Callable[[], Spread | None], name: str, place: int | None) -> list[Array] | None:
    """One row of the answers without a change and with each change; None if it could not be measured."""
    spread = measured()
    if spread is None or not spread.changed:
        return None
    cut = slice(None) if place is None else slice(place, place + 1)
    return [_flat(outputs[name], cut) for outputs in (spread.unchanged, *spread.changed)]


def _severity(finding: Finding) -> tuple[int, float]:
    order = ("pass", "undecided", "fail")
    return order.index(finding.verdict), (finding.error or 0.0) / max(finding.tolerance, 1e-300)


def _result(
    name: str, answers: Answers, rules: Rules, rows: Sequence[Row], findings: Sequence[Finding], worst: int
) -> OutputResult:
    errors = [found.error for found in findings if found.error is not None and np.isfinite(found.error)]
    chosen = findings[worst]
    asked = rows[worst].truth is not None or rows[worst].refusal is not None
    all_nan = all(found.verdict == "pass" and found.error is None for found in findings)
    verdict = "undecided" if asked and all_nan else chosen.verdict
    where = f"row {rows[worst].place} of {len(rows)}: " if len(rows) > 1 and chosen.remarkable else ""
    parties = dict(_metrics(name, answers, rules, rows))
    return OutputResult(
        name, verdict, f"{where}{chosen.reason}", chosen.tolerance, max(errors, default=None), **parties
    )


def _metrics(name: str, answers: Answers, rules: Rules, rows: Sequence[Row]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The distances over all rows that are finite in every party."""
    assert not isinstance(answers.artifact, str)
    arrays = {"actual": answers.artifact[name]}
    arrays |= {"eager": answers.eager[name]} if answers.eager is not None else {}
    arrays |= {"oracle": answers.oracle[name]} if answers.oracle is not None else {}
    clean = [row.is_finite for row in rows]
    if not any(clean) or len(arrays) == 1:
        return
    if rows[0].place is not None:
        arrays = {party: array[np.array(clean)] for party, array in arrays.items()}
    classes, by_row = name == "logits", rows[0].place is not None
    truth = arrays.get("oracle", arrays.get("eager"))
    assert truth is not None
    rules.histogram.add(arrays["actual"], truth)
    for party, actual, expected in (
        ("parity", "actual", "eager"),
        ("artifact", "actual", "oracle"),
        ("eager", "eager", "oracle"),
    ):
        if actual in arrays and expected in arrays:
            yield party, asdict(measure(arrays[actual], arrays[expected], classes=classes, by_row=by_row))
