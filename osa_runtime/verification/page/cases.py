"""The cases of the page: a row for each output, and all their measures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from osa_runtime.parity.certificate import CaseResult, Certificate, LayerResult, OutputResult
from osa_runtime.verification.page.markup import Figure, Html, badge, folded, number, table, tag, times

METRICS = {"max_abs": "max abs", "max_rel": "max rel", "rms": "RMS, relative", "cosine": "1 − cosine"}
ULPS = {"ulp_p50": "ULP p50", "ulp_p99": "ULP p99", "ulp_max": "ULP max"}
ALIKE = 1.05  # two distances this close are called alike


def cases_table(certificate: Certificate) -> Html:
    if not certificate.cases:
        return tag("p", "No case was run: there is nothing to run where inputs or outputs differ.")
    other = other_name(certificate)
    several = len({output.name for _, output in outputs(certificate)}) > 1
    columns: tuple[str, ...] = ("case", "output", "‖S‖", "verdict", "artifact from float64", f"{other} from float64")
    columns += (f"artifact from {other}", "further from float64", "tolerance", "used", "same class")
    rows = [
        (
            Figure(case.name),
            output.name if several else None,
            _norm(case.norm),
            badge(output.verdict),
            *_distances(output, other),
        )
        for case, output in outputs(certificate)
    ]
    notes = [output.remark for _, output in outputs(certificate)]
    return table(columns, rows, notes)


def _norm(norm: float | None) -> Figure | None:
    return None if norm is None else Figure(number(norm, ".3g"))


def _distances(output: OutputResult, other: str) -> tuple[object, ...]:
    mine, theirs = relative(output.artifact), relative(output.eager)
    return (
        mine,
        theirs,
        relative(output.parity),
        _further(mine, theirs, other),
        None if judged_error(output) is None else output.tolerance,
        None if (used := share(output)) is None else Figure(portion(used)),
        _classes(output.parity),
    )


def _classes(metrics: dict[str, Any] | None) -> Figure | None:
    top1 = (metrics or {}).get("top1")
    return None if top1 is None else Figure(f"{100 * top1:.4g} %")


def _further(mine: float | None, theirs: float | None, other: str) -> str | None:
    if mine is None or theirs is None:
        return None
    small, large = sorted((mine, theirs))
    if large <= ALIKE * small:
        return "alike"
    who = "artifact" if mine > theirs else other
    return f"{who}, {times(large / small)}" if small else who


def metrics_table(certificate: Certificate) -> Html:
    """Every measure of every pair of parties."""
    other = other_name(certificate)
    pairs = (
        ("artifact", "artifact from float64"),
        ("eager", f"{other} from float64"),
        ("parity", f"artifact from {other}"),
    )
    rows = [
        (Figure(case.name), output.name, title, *_measures(metrics))
        for case, output in outputs(certificate)
        for key, title in pairs
        if (metrics := getattr(output, key)) is not None
    ]
    columns = ("case", "output", "distance of", *METRICS.values(), *ULPS.values(), "same class")
    said = (
        "Relative to the largest expected value; ULPs are those of the artifact's type at the largest value of a row."
    )
    return folded("All measures", tag("p", said), table(columns, rows)) if rows else Html("")


def _measures(metrics: dict[str, Any]) -> list[object]:
    values = dict(metrics)
    cosine = values.get("cosine")
    values["cosine"] = None if cosine is None else max(0.0, 1.0 - cosine)  # 1 + eps is rounding
    found: list[object] = [_measure(values.get(key)) for key in METRICS]
    found += [_ulps(values.get(key)) for key in ULPS]
    return [*found, _classes(metrics)]


def _measure(value: float | None) -> Figure:
    return Figure(number(value, ".3g"))


def _ulps(value: float | None) -> Figure:
    return Figure(number(value, ",.1f" if value is not None and value < 1e6 else ".3g"))


def name_of(party: dict[str, Any]) -> str:
    return str(party.get("name") or party.get("model") or "unnamed")


def other_name(certificate: Certificate) -> str:
    """The name of the party other than the artifact."""
    if certificate.kind == "compare":
        return "reference"
    return "given outputs" if certificate.settings.get("given_outputs") else "eager"


def outputs(certificate: Certificate) -> Iterator[tuple[CaseResult, OutputResult]]:
    for case in certificate.cases:
        for output in case.outputs:
            yield case, output


def relative(metrics: dict[str, Any] | None) -> float | None:
    value = (metrics or {}).get("max_rel")
    return None if value is None else float(value)


def judged_error(output: OutputResult) -> float | None:
    """The distance that is judged: from float64, or from the other party if there is no float64."""
    from_truth = relative(output.artifact)
    return relative(output.parity) if from_truth is None else from_truth


def share(output: OutputResult) -> float | None:
    """The share of its tolerance that an output used up."""
    return None if output.needed is None or not output.tolerance else output.needed / output.tolerance


def tolerances(certificate: Certificate) -> list[float]:
    """The tolerances of all outputs, except those that overflowed with ‖S‖."""
    return [output.tolerance for _, output in outputs(certificate) if output.tolerance]


def portion(used: float) -> str:
    """The share in percent, or as a factor where that is clearer."""
    return f"{100 * used:.2g} %" if used < 1 else times(used)


def worst_defect(layer: LayerResult) -> float | None:
    return max((head.defect for head in layer.heads if head.defect is not None), default=None)


def worst_error(layer: LayerResult) -> float | None:
    return max((head.error for head in layer.heads if head.error is not None), default=None)


def worst_stretch(layer: LayerResult) -> float | None:
    """The largest |‖Av‖/‖v‖ − 1| of its heads."""
    ratios = [ratio for head in layer.heads for ratio in (head.ratio_low, head.ratio_high)]
    return max((abs(ratio - 1) for ratio in ratios if ratio is not None), default=None)


def largest_norm(layer: LayerResult) -> float | None:
    return max((head.norm for head in layer.heads if head.norm is not None), default=None)
