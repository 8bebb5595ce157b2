"""Steps that all packages share: named artifacts, checked and copied into a folder that is ours to replace."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from osa_runtime import __version__
from osa_runtime.artifact import MANIFEST_FILE, Artifact
from osa_runtime.atomic import atomic_folder, check_apart, check_replaceable
from osa_runtime.errors import ArtifactError, InputError
from osa_runtime.parity.certificate import CERTIFICATE_FILE
from osa_runtime.serving.engine.model_folders import NAME

MARKER = "osa-package.json"


@contextlib.contextmanager
def new_package(
    artifacts: Sequence[Path], out: Path, name: str | None, server: str, *, replace: bool
) -> Iterator[tuple[Path, dict[str, Path]]]:
    """The folder that becomes ``out`` at the end, and the artifacts by name."""
    named = _name_artifacts(artifacts, name, server)
    check_replaceable(out, replace=replace, marker=MARKER)
    for source in artifacts:
        check_apart(out, source)
    with atomic_folder(out, replace=replace, marker=MARKER) as temporary:
        yield temporary, named


def describe(folder: Path, target: str, **content: Any) -> None:
    """Write the marker of a folder that we wrote, which says what is in it."""
    text = json.dumps({"osa-runtime": __version__, "target": target, **content}, indent=2)
    (folder / MARKER).write_text(text + "\n", encoding="utf-8")


def _name_artifacts(artifacts: Sequence[Path], name: str | None, server: str) -> dict[str, Path]:
    """Name each artifact after its folder, or the only one ``name``."""
    if not artifacts:
        raise InputError("There is nothing to package; pass at least one folder that `osa export` wrote.")
    if name is not None and len(artifacts) > 1:
        raise InputError(f"name={name!r} is for one model, got {len(artifacts)} artifacts; leave it out.")
    found: dict[str, Path] = {}
    for folder in artifacts:
        chosen = folder.resolve().name if name is None else name
        if not NAME.fullmatch(chosen):
            raise InputError(
                f"{chosen!r} cannot be the name of a model in {server}; expected letters, digits, . _ and -, "
                "at most 128, a letter or digit first. Choose one with name='…'."
            )
        if chosen in found:
            raise InputError(f"{folder} and {found[chosen]} have the same name {chosen}; package one of them alone.")
        found[chosen] = folder
    return found


def open_onnx(folder: Path) -> Artifact:
    """Open an ONNX artifact and compare its files with its manifest."""
    artifact = Artifact.open(folder)
    kind = artifact.manifest.format
    if kind != "onnx":
        raise ArtifactError(
            f"{folder} is of the format {kind}, expected onnx, which needs no torch in the server. "
            "Export it again with `osa export --format onnx`."
        )
    artifact.check_files()
    return artifact


def copy_artifact(artifact: Artifact, version: Path) -> None:
    for name in (MANIFEST_FILE, *artifact.manifest.files):
        shutil.copyfile(artifact.folder / name, version / name)
    certificate = artifact.folder / CERTIFICATE_FILE
    if certificate.is_file():
        shutil.copyfile(certificate, version / CERTIFICATE_FILE)
