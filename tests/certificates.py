"""Certificates for tests that serve models: made by hand, since a verification takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from osa_runtime.artifact import Artifact
from osa_runtime.parity.certificate import CaseResult, Certificate, Check, OutputResult
from osa_runtime.parity.signing import STANDARD


def certificate_of(folder: Path, **changes: Any) -> Certificate:
    """One that says that the artifact in ``folder``, as it is now, is right."""
    artifact = Artifact.open(folder)
    listed = {name: entry.sha256 for name, entry in artifact.manifest.files.items()}
    plain: dict[str, Any] = dict(
        kind="verify",
        created="2026-01-01T00:00:00Z",
        subject={"files": listed | {"manifest.json": artifact.manifest_sha256}},
        reference={"model": "SkiplessViT"},
        settings=STANDARD,
        versions={},
        checks=(Check("files", True, "as the manifest says"), Check("structure", True, "as a fresh export gives it")),
        cases=(CaseResult("random", {"batch": 2}, 1.0, (OutputResult("logits", "pass", "fine", 1e-5),)),),
    )
    return Certificate(**plain | changes)


def certify(folder: Path, **changes: Any) -> None:
    certificate_of(folder, **changes).write(folder / "certificate.json")
