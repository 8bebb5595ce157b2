"""Objections to relying on a certificate: not every verification is wide, strict and independent enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osa_runtime.artifact import MANIFEST_FILE, Artifact
from osa_runtime.parity.certificate import CERTIFICATE_FILE, Certificate

REPORTS = (".html", ".json", ".png", ".svg")  # that `osa verify` and `osa inspect` may have written

# The settings of a whole verification. Others are looser, narrower, or rely on files of the author.
STANDARD = {
    "rtol": None,
    "atol": None,
    "batches": None,
    "lengths": None,
    "given_inputs": False,
    "given_outputs": False,
}


def objection(certificate: Certificate) -> str | None:
    """The reason why a certificate does not show that the model is right, whatever its files; None if it does."""
    if certificate.kind == "compare":
        return "it is of the kind compare, expected verify"
    if certificate.failed:
        first = next(iter(certificate.failures()), "no case could be decided")
        return f"the model failed its verification: {first}"
    if not certificate.passed:
        return "the model is consistent with itself but was not compared with a reference"
    if certificate.basis != "structure and numbers":
        return "it rests on numbers only, and the structure was not compared; export the model again, and verify that"
    return settings_objection(certificate.settings)


def settings_objection(settings: Mapping[str, Any]) -> str | None:
    """The reason why a verification with these settings must not be relied on."""
    if settings.get("quick"):
        return "it was a quick verification, which leaves out most sizes and kinds of input"
    for name, standard in STANDARD.items():
        found = settings.get(name, "unknown")
        if found != standard:
            return f"{name} was {found}, and only verifications with all standard tolerances, sizes and inputs count"
    return None


def files_objection(certificate: Certificate, artifact: Artifact) -> str | None:
    """The reason why it is not the certificate of this artifact. Files are not compared with the manifest here."""
    expected, certified = _listed(artifact), certificate.artifact_sha256
    for name in sorted({*expected, *certified}):
        if expected.get(name) != certified.get(name):
            return f"it was written for another {name}: the hashes differ"
    return None


def folder_objection(artifact: Artifact) -> str | None:
    """The reason why the folder holds more than the certificate covers."""
    known = {*_listed(artifact), CERTIFICATE_FILE}
    for path in sorted(artifact.folder.iterdir()):
        report = path.suffix in REPORTS and path.is_file()
        if path.name not in known and not report:
            return f"{path.name} is in the folder, and {MANIFEST_FILE} does not list it; remove it"
    return None


def _listed(artifact: Artifact) -> dict[str, Any]:
    listed = {name: entry.sha256 for name, entry in artifact.manifest.files.items()}
    return listed | {MANIFEST_FILE: artifact.manifest_sha256}
