"""``--require-certificate``: only models whose parity was proved, and whose files are those that were proved."""

from __future__ import annotations

from typing import Any

from osa_runtime.artifact import Artifact, sha256
from osa_runtime.errors import ArtifactError, OsaError
from osa_runtime.parity.certificate import CERTIFICATE_FILE, Certificate, read_certificate

REMEDY = "Verify the artifact with `osa verify` and write the certificate beside it, or serve it without a certificate."


def check_certificate(artifact: Artifact) -> None:
    """Raise unless a passing certificate lies beside the model and names the very files that are there."""
    path = artifact.folder / CERTIFICATE_FILE
    certificate = read_certificate(path)
    if certificate.kind != "verify":
        raise ArtifactError(f"{path} is of the kind {certificate.kind}, expected verify. {REMEDY}")
    if not certificate.passed:
        first = next(iter(certificate.failures()), "nothing could be decided")
        raise ArtifactError(f"{path} says that the model failed its verification: {first}. {REMEDY}")
    certified = certificate.artifact_sha256
    for name in artifact.manifest.files:
        if certified.get(name) != sha256(artifact.folder / name):
            raise ArtifactError(f"{path} was written for another {name}: the hashes differ. {REMEDY}")


def layer_summary(artifact: Artifact) -> list[dict[str, Any]]:
    """The orthogonality of each layer, as the certificate has it; empty where there is none of these files."""
    try:
        certificate = read_certificate(artifact.folder / CERTIFICATE_FILE)
    except OsaError:
        return []
    exported = {name: entry.get("sha256") for name, entry in artifact.manifest.files.items()}
    certified = certificate.artifact_sha256
    return _worst_by_layer(certificate) if exported.items() <= certified.items() else []


def _worst_by_layer(certificate: Certificate) -> list[dict[str, Any]]:
    worst: dict[str, dict[str, Any]] = {}
    for layer in certificate.layers:
        if layer.party != "artifact" or not layer.heads:
            continue
        entry = worst.setdefault(layer.layer, {"layer": layer.layer, "defect": 0.0, "norm": 0.0, "squarings": 0})
        entry["defect"] = max(entry["defect"], *(head.defect or 0.0 for head in layer.heads))
        entry["norm"] = max(entry["norm"], *(head.norm or 0.0 for head in layer.heads))
        entry["squarings"] = max(entry["squarings"], layer.squarings)
    return list(worst.values())
