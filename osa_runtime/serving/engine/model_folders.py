"""Folders that hold models, their versions, and the certificates that may be required.

ARTIFACT                     the model ARTIFACT's folder name, version 1
DIR/NAME/manifest.json       the model NAME of a repository, version 1
DIR/NAME/3/manifest.json     its version 3

No name from a request ever becomes a path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from osa_runtime.artifact import MANIFEST_FILE, Artifact
from osa_runtime.errors import ArtifactError, InputError, OsaError
from osa_runtime.parity.certificate import CERTIFICATE_FILE, Certificate, read_certificate
from osa_runtime.parity.signing import files_objection, folder_objection, objection
from osa_runtime.recognition import not_an_artifact

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
VERSION = re.compile(r"[1-9][0-9]{0,17}")

Versions = dict[int, Path]


class ModelFolders:
    def __init__(self, artifacts: Sequence[Path], repository: Path | None) -> None:
        self._artifacts = _by_name(artifacts)
        self._repository = repository
        if repository is not None and not repository.is_dir():
            raise ArtifactError(f"The repository {repository} is not a folder; expected one folder per model in it.")
        if repository is not None and (repository / MANIFEST_FILE).is_file():
            raise InputError(f"The repository {repository} is an artifact itself; serve it as an artifact.")
        twice = sorted(set(self._artifacts) & set(self._in_repository()))
        if twice:
            raise InputError(f"{', '.join(twice)} is both an artifact and in {repository}; give each model once.")

    def names(self) -> list[str]:
        return sorted(self.listing())

    def listing(self) -> dict[str, Versions]:
        """All models that are on the disk now, with their versions."""
        return {name: self.versions(name) for name in self._artifacts} | self._in_repository()

    def versions(self, name: str) -> Versions:
        """The versions of a model that are on the disk now; empty if there is no such model."""
        if name in self._artifacts:
            folder = self._artifacts[name]
            return {1: folder} if (folder / MANIFEST_FILE).is_file() else {}
        return self._in_repository().get(name, {})

    def _in_repository(self) -> dict[str, Versions]:
        if self._repository is None:
            return {}
        root = self._repository.resolve()
        try:
            folders = [path for path in sorted(root.iterdir()) if NAME.fullmatch(path.name) and _inside(path, root)]
        except OSError as error:
            raise ArtifactError(f"The repository {self._repository} cannot be read: {error}") from error
        found = {path.name: _versions(path, root) for path in folders if path.is_dir()}
        return {name: versions for name, versions in found.items() if versions}


def _versions(folder: Path, root: Path) -> Versions:
    if (folder / MANIFEST_FILE).is_file():
        return {1: folder}
    try:
        paths = [path for path in folder.iterdir() if VERSION.fullmatch(path.name) and _inside(path, root)]
    except OSError:
        return {}  # it may have been removed since the listing
    return {int(path.name): path for path in paths if (path / MANIFEST_FILE).is_file()}


def _inside(path: Path, root: Path) -> bool:
    """A link out of the repository is not one of its models."""
    return path.resolve().is_relative_to(root)


def _by_name(artifacts: Sequence[Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in artifacts:
        if not (path / MANIFEST_FILE).is_file():
            raise not_an_artifact(path)
        name = path.resolve().name
        if not NAME.fullmatch(name):
            raise InputError(f"{path} cannot be served under the name {name!r}; expected letters, digits, . _ and -.")
        if name in found:
            raise InputError(f"{path} and {found[name]} have the same name {name}; rename one of them.")
        found[name] = path
    return found


REMEDY = "Run `osa verify ARTIFACT --against CHECKPOINT --certify`, or serve it without require_certificate=True."

SIGN = "Sign it with `osa verify ARTIFACT --against CHECKPOINT --certify --sign KEY`."


def check_certificate(artifact: Artifact, trusted_keys: Sequence[Path] = ()) -> None:
    """Raise unless a certificate next to the model is a PASS and was made for exactly these files.

    If there are trusted keys, one of them must have signed it. Its hashes are compared with the manifest's here, and
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
    """Check at the start of a server that each is a public key."""
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
