"""``require_certificate``: only models whose parity was proved, and whose files are those that were proved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from osa_runtime.artifact import Artifact
from osa_runtime.errors import ArtifactError, OsaError
from osa_runtime.parity.certificate import CERTIFICATE_FILE, Certificate, read_certificate
from osa_runtime.parity.trust import files_objection, folder_objection, objection

REMEDY = "Run `osa verify ARTIFACT --against CHECKPOINT --certify`, or serve it without require_certificate=True."

SIGN = "Sign it with `osa verify ARTIFACT --against CHECKPOINT --certify --sign KEY`."


def check_certificate(artifact: Artifact, trusted_keys: Sequence[Path] = ()) -> None:
    """Raise unless a certificate next to the model says that it is right, and was made for these very files.

    Where there are trusted keys, one of them must have signed it. Its hashes are compared with the manifest's here, and
    the files with the manifest's when they are loaded.
    """
    path = artifact.folder / CERTIFICATE_FILE
    certificate = read_certificate(path)
    reason = objection(certificate) or files_objection(certificate, artifact) or folder_objection(artifact)
    if reason is not None:
        raise ArtifactError(f"{path} is not enough to serve the model: {reason}. {REMEDY}")
    if trusted_keys:
        from osa_runtime.parity.signing import check_signature, read_public_key

        try:
            check_signature(certificate, [read_public_key(key) for key in trusted_keys])
        except ArtifactError as error:
            raise ArtifactError(f"{path} is not enough to serve the model: {error} {SIGN}") from error


def check_keys(paths: Sequence[Path]) -> None:
    """When a server starts: each must be a public key."""
    if paths:
        from osa_runtime.parity.signing import read_public_key

        for path in paths:
            read_public_key(path)


def layer_summary(artifact: Artifact) -> list[dict[str, Any]]:
    """The orthogonality of each layer, as the certificate has it; empty where there is none of these files."""
    try:
        certificate = read_certificate(artifact.folder / CERTIFICATE_FILE)
    except OsaError:
        return []
    return _worst_by_layer(certificate) if files_objection(certificate, artifact) is None else []


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
