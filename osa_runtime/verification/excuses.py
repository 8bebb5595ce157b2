"""NaN that is right: a graph with a fixed number of squarings has to give it beyond its range.

With a checkpoint, float64 tells how large ‖S‖ was. Without one, the artifact's own layers do.
"""

from __future__ import annotations

import dataclasses

from osa_runtime.manifest import AttentionSettings
from osa_runtime.parity.certificate import CaseResult, OutputResult
from osa_runtime.parity.feeds import Case
from osa_runtime.verification.inside.insides import Insides
from osa_runtime.verification.layer_checks import check_layers


def excused(result: CaseResult, case: Case, insides: Insides, osa: AttentionSettings | None, dtype: str) -> CaseResult:
    """The same result, undecided where a layer was given more than it was exported for and gave NaN."""
    if result.verdict != "fail" or not all(output.name for output in result.outputs):
        return result
    layers = check_layers(insides, case, osa, dtype, "artifact")
    reason = next((f"{layer.layer}: {layer.reason}" for layer in layers if layer.passed and not layer.heads), None)
    if reason is None:
        return result
    return undecided(result, reason)


def undecided(result: CaseResult, reason: str) -> CaseResult:
    """The same result, where outputs that failed are undecided for this reason."""
    return dataclasses.replace(result, outputs=tuple(_undecided(output, reason) for output in result.outputs))


def _undecided(output: OutputResult, reason: str) -> OutputResult:
    failed = output.verdict == "fail"
    return dataclasses.replace(output, verdict="undecided", reason=reason) if failed else output
