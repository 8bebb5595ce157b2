"""Trained models as they are deployed: exported, compared with eager on the whole test set, verified, and served."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from osa_runtime.errors import ExportError, OsaError
from osa_runtime.evaluation import evaluate
from osa_runtime.evidence.claims import Claim
from osa_runtime.evidence.runs import Bench
from osa_runtime.exporters import export_checkpoint
from osa_runtime.models import load_checkpoint
from osa_runtime.runtime.device import DeviceSettings
from osa_runtime.verification import VerifySettings, verify

CLAIMS = (
    Claim(
        "Exported models answer as eager does: differing classes in 10,000 test samples, in the worst model",
        "most_differing_per_10000",
        at_most=1.0,
    ),
    Claim("Every trained model is exported, and passes `osa verify`: share of them", "verified", at_least=1.0),
    Claim(
        "Saved models are those that were trained: largest difference of their accuracy, points",
        "saved_difference",
        at_most=0.02,
        in_quick=False,
    ),
)

SERVED = Claim(
    "A served model answers each sequence alone as eager answers all of them, padded: largest difference of a logit",
    "served_difference",
    at_most=1e-4,
)


def deploy_all(
    bench: Bench, trained: Mapping[str, float], *, data: str | Path | None = None, limit: int | None = None
) -> list[dict[str, Any]]:
    """What became of each model that was trained, by name with its accuracy; those that diverged are left out.

    ``data`` is that of the experiment, unless it is given. A quick run deploys the first model alone.
    """
    finished = [name for name in trained if (bench.folder(name) / "checkpoint").exists()]
    found = []
    for name in finished[:1] if bench.quick else finished:
        make = partial(_deploy, bench, bench.folder(name), data or bench.data or "", limit)
        done = bench.once(f"{name}-onnx", {"limit": limit}, make)
        found.append({"run": name, "trained_accuracy": 100 * trained[name], **done})
    return found


def _deploy(bench: Bench, folder: Path, data: str | Path, limit: int | None) -> dict[str, Any]:
    """A model whose export is refused is a result, too: ``refused`` says why."""
    artifact = folder / "onnx"
    try:
        export_checkpoint(folder, artifact, replace=True)
    except ExportError as error:
        return {"refused": str(error)}
    found = evaluate(artifact, data, folder, limit=limit, threads=1, data_folder=bench.data_folder)
    assert found.against is not None, "the checkpoint was given"
    certificate = verify(artifact, folder, VerifySettings(DeviceSettings(threads=1), quick=True)).certificate
    return {
        "onnx_accuracy": found.accuracy.value,
        "eager_accuracy": found.against.value,
        "samples": found.accuracy.samples,
        "differ": found.differ,
        "verdict": certificate.verdict,
        "failures": certificate.failures(),
    }


def measured(deployed: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The quantities of ``CLAIMS``."""
    verdicts = [entry.get("verdict") == "pass" for entry in deployed]
    differing = [1e4 * entry["differ"] / entry["samples"] for entry in deployed if "differ" in entry]
    saved = [abs(100 * e["eager_accuracy"] - e["trained_accuracy"]) for e in deployed if "eager_accuracy" in e]
    return {
        "saved_difference": max(saved, default=float("nan")),
        "most_differing_per_10000": max(differing, default=float("nan")),
        "verified": statistics.mean(verdicts) if verdicts else float("nan"),
    }


def report(deployed: Sequence[Mapping[str, Any]]) -> str:
    """A summary, and everything that went wrong."""
    compared = [entry for entry in deployed if "differ" in entry]
    faults = [f"- {e['run']}: {text}" for e in deployed for text in e.get("failures", [e.get("refused")])]
    text = (
        "## Exported\n\n"
        f"Trained models to be exported, which those of a search for rates are not: {len(deployed)}. Exported to ONNX: "
        f"{len(compared)}. Their classes of the test samples in ONNX Runtime differ from eager's for "
        f"{sum(e['differ'] for e in compared)} of {sum(e['samples'] for e in compared)}. "
        f"`osa verify --quick` passes {sum(e['verdict'] == 'pass' for e in compared)} models."
    )
    return "\n".join([text, *(["\nWhat was refused or failed:\n", *faults] if faults else [])])


def serve_once(bench: Bench, name: str, x: Any, mask: Any, count: int = 20) -> dict[str, float]:
    """Serve an exported encoder by `osa serve`, and ask it for some sequences, one by one and without their padding.

    Nothing if its training diverged, or its export was refused.
    """
    folder = bench.folder(name)
    if not (folder / "onnx").exists():
        return {}

    def make() -> dict[str, float]:
        with torch.no_grad():
            eager = load_checkpoint(folder)(torch.from_numpy(x[:count]), torch.from_numpy(mask[:count])).numpy()
        with served(folder / "onnx") as origin:
            answers = [_answer(origin, row[real]) for row, real in zip(x[:count], mask[:count], strict=True)]
        differ = np.argmax(answers, 1) != eager.argmax(1)
        largest = np.abs(np.array(answers) - eager).max()
        return {"served_difference": float(largest), "served_differ": int(differ.sum()), "served": len(answers)}

    return bench.once(f"{name}-served", {"count": count}, make)


@contextlib.contextmanager
def served(artifact: Path) -> Iterator[str]:
    """The address of a server of the artifact, in a process of its own, which is stopped at the end."""
    options = ["--http-port", "0", "--grpc-port", "-1", "--threads", "1", "--log-level", "error"]
    command = [sys.executable, "-m", "osa_runtime", "serve", str(artifact), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "it is a pipe"
        try:
            lines = iter(process.stdout.readline, "")
            origin = next((line.split()[-1] for line in lines if line.startswith("REST")), None)
            if origin is None:
                raise OsaError(f"osa serve {artifact} ended with {process.wait()} before it was ready.")
            yield origin
        finally:
            process.terminate()


def _answer(origin: str, tokens: Any) -> list[float]:
    """The logits of one sequence of vectors."""
    size = len(tokens)
    inputs = [
        {"name": "tokens", "datatype": "FP32", "shape": [1, *tokens.shape], "data": tokens.ravel().tolist()},
        {"name": "mask", "datatype": "BOOL", "shape": [1, size], "data": [True] * size},
    ]
    body = json.dumps({"inputs": inputs}).encode()
    request = urllib.request.Request(f"{origin}/v2/models/onnx/infer", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    logits: list[float] = answer["outputs"][0]["data"]
    return logits


def served_report(found: Mapping[str, float]) -> str:
    if not found:
        return "## Served\n\nThere was no exported model to serve."
    return (
        f"## Served\n\n`osa serve` was asked for {found['served']} sequences, one by one and without their padding: "
        f"{found['served_differ']} classes differ from those of eager for the padded batch, and no logit by more than "
        f"{found['served_difference']:.2g}."
    )
