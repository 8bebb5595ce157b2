"""Trained models as they are deployed: exported to ONNX, compared with eager on the whole test set, and verified."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from osa_runtime.errors import ExportError
from osa_runtime.evaluation import evaluate
from osa_runtime.evidence.claims import Claim
from osa_runtime.evidence.runs import Bench
from osa_runtime.exporters import export_checkpoint
from osa_runtime.runtime.device import DeviceSettings
from osa_runtime.verification import VerifySettings, verify

CLAIMS = (
    Claim(
        "Exported models answer as eager does: differing classes in 10,000 test samples, in the worst model",
        "most_differing_per_10000",
        at_most=1.0,
    ),
    Claim("Every verified model passes: share of verdicts", "verified", at_least=1.0),
    Claim(
        "Saved models are those that were trained: largest difference of their accuracy, points",
        "saved_difference",
        at_most=0.02,
        in_quick=False,
    ),
)


def deploy_once(
    bench: Bench,
    name: str,
    trained: float,
    *,
    data: str | Path | None = None,
    limit: int | None = None,
    verified: bool = False,
    **options: Any,
) -> list[dict[str, Any]]:
    """The fate of a model with the accuracy ``trained``, as a list of one; empty if its training diverged.

    ``data`` is that of the experiment, unless it is given; ``options`` are those of the export. A model whose export is
    refused is a result, too: ``refused`` says why.
    """
    folder = bench.folder(name)
    if not (folder / "checkpoint").exists():
        return []

    def make() -> dict[str, Any]:
        try:
            export_checkpoint(folder, folder / "onnx", replace=True, **options)
        except ExportError as error:
            return {"refused": str(error)}
        found = evaluate(
            folder / "onnx", data or bench.data or "", folder, limit=limit, threads=1, data_folder=bench.data_folder
        )
        assert found.against is not None, "the checkpoint was given"
        result: dict[str, Any] = {
            "onnx_accuracy": found.accuracy.value,
            "eager_accuracy": found.against.value,
            "samples": found.accuracy.samples,
            "differ": found.differ,
        }
        if verified:
            quick = VerifySettings(DeviceSettings(threads=1), quick=True)
            result["verdict"] = verify(folder / "onnx", folder, quick).certificate.verdict
        return result

    done = bench.once(f"{name}-onnx", {"limit": limit, "verified": verified, **options}, make)
    return [{"run": name, "trained_accuracy": 100 * trained, **done}]


def measured(deployed: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The quantities of ``CLAIMS``."""
    verdicts = [entry["verdict"] == "pass" for entry in deployed if "verdict" in entry]
    differing = [1e4 * entry["differ"] / entry["samples"] for entry in deployed if "differ" in entry]
    saved = [abs(100 * e["eager_accuracy"] - e["trained_accuracy"]) for e in deployed if "eager_accuracy" in e]
    return {
        "saved_difference": max(saved, default=float("nan")),
        "most_differing_per_10000": max(differing, default=float("nan")),
        "verified": statistics.mean(verdicts) if verdicts else float("nan"),
    }


def report(deployed: Sequence[Mapping[str, Any]]) -> str:
    compared = [entry for entry in deployed if "differ" in entry]
    verified = [entry for entry in deployed if "verdict" in entry]
    refused = [f"- {entry['run']}: {entry['refused']}" for entry in deployed if "refused" in entry]
    text = (
        "## Exported\n\n"
        f"{len(compared)} trained models were exported to ONNX and run in ONNX Runtime on the test samples: "
        f"{sum(e['differ'] for e in compared)} of {sum(e['samples'] for e in compared)} classes differ from eager's. "
        f"{len(verified)} of them were verified: {sum(e['verdict'] == 'pass' for e in verified)} pass."
    )
    return "\n".join([text, *(["\nThe export refused:\n", *refused] if refused else [])])
