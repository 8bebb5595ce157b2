"""Which certificates may be relied on: not every verification is wide, strict and independent enough to deploy on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osa_runtime.artifact import MANIFEST_FILE, Artifact
from osa_runtime.parity.certificate import CERTIFICATE_FILE, Certificate

REPORTS = (".html", ".json", ".png", ".svg")  # what `osa verify` and `osa inspect` may have written into the folder

# The settings of a whole verification. With others it was looser, narrower, or judged by what its author brought along.
STANDARD = {
    "rtol": None,
    "atol": None,
    "batches": None,
    "lengths": None,
    "given_inputs": False,
    "given_outputs": False,
}


def objection(certificate: Certificate) -> str | None:
    """Why a certificate does not show that the model is right, whatever its files; None where it does."""
    if certificate.kind == "compare":
        return "it is of the kind compare, expected verify"
    if certificate.failed:
        first = next(iter(certificate.failures()), "no case could be decided")
        return f"the model failed its verification: {first}"
    if not certificate.passed:
        return "the model is consistent with itself but was compared with no reference"
    if certificate.basis != "structure and numbers":
        return "it rests on numbers only, and the structure was not compared; export the model again, and verify that"
    return settings_objection(certificate.settings)


def settings_objection(settings: Mapping[str, Any]) -> str | None:
    """Why no verification with these settings is one to rely on."""
    if settings.get("quick"):
        return "it was a quick verification, which leaves most sizes and kinds of input out"
    for name, standard in STANDARD.items():
        found = settings.get(name, "unknown")
        if found != standard:
            return f"{name} was {found}, and only verifications with all standard tolerances, sizes and inputs count"
    return None


def files_objection(certificate: Certificate, artifact: Artifact) -> str | None:
    """Why it is not the certificate of this artifact. Whether the files are those of the manifest is not asked here."""
    expected, certified = _listed(artifact), certificate.artifact_sha256
    for name in sorted({*expected, *certified}):
        if expected.get(name) != certified.get(name):
            return f"it was written for another {name}: the hashes differ"
    return None


def folder_objection(artifact: Artifact) -> str | None:
    """Why more lies in the folder than a certificate can speak for."""
    known = {*_listed(artifact), CERTIFICATE_FILE}
    for path in sorted(artifact.folder.iterdir()):
        report = path.suffix in REPORTS and path.is_file()
        if path.name not in known and not report:
            return f"{path.name} is in the folder, and {MANIFEST_FILE} does not list it; remove it"
    return None


def _listed(artifact: Artifact) -> dict[str, Any]:
    listed = {name: entry.sha256 for name, entry in artifact.manifest.files.items()}
    return listed | {MANIFEST_FILE: artifact.manifest_sha256}
