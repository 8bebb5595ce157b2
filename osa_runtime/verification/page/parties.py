"""Who is compared with whom in a certificate, and how far apart they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from osa_runtime.parity.certificate import CaseResult, Certificate, LayerResult, OutputResult
from osa_runtime.verification.page.markup import times


def other_name(certificate: Certificate) -> str:
    """The party beside the artifact."""
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
    """The distance that the verdict is about: from float64, or from the other party where there is no float64."""
    from_truth = relative(output.artifact)
    return relative(output.parity) if from_truth is None else from_truth


def share(output: OutputResult) -> float | None:
    """How much of its tolerance an output used up."""
    return None if output.needed is None or not output.tolerance else output.needed / output.tolerance


def tolerances(certificate: Certificate) -> list[float]:
    """Those of all outputs; one that grew beyond all numbers with ‖S‖ is none."""
    return [output.tolerance for _, output in outputs(certificate) if output.tolerance]


def portion(used: float) -> str:
    """In percent, or in times where that says more."""
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
