"""The exported folder: a model file, and ``manifest.json``, its description. Nothing here needs torch or onnx.

model.onnx | model.pt | model.pt2    the model
model.onnx.data                      its weights, where they are kept outside
manifest.json                        format, inputs and outputs, settings, hashes, versions
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from osa_runtime.errors import ArtifactError
from osa_runtime.external_data import external_files
from osa_runtime.formats import FORMATS
from osa_runtime.manifest import Manifest, StoredFile

MANIFEST_FILE = "manifest.json"


@dataclass(frozen=True)
class Artifact:
    """An exported folder. ``manifest_sha256`` is the hash of the bytes that ``manifest`` was read from."""

    folder: Path
    manifest: Manifest
    manifest_sha256: str

    @property
    def model_path(self) -> Path:
        return self.folder / FORMATS[self.manifest.format].file

    @classmethod
    def open(cls, folder: str | Path) -> Artifact:
        """Read the manifest of an exported folder. The model file itself is not read."""
        path = Path(folder) / MANIFEST_FILE
        if not path.is_file():
            from osa_runtime.recognition import not_an_artifact

            raise not_an_artifact(Path(folder))
        try:
            content = path.read_bytes()
            text = content.decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactError(f"{path} cannot be read: {error}") from error
        artifact = cls(Path(folder), Manifest.from_json(text, str(path)), hashlib.sha256(content).hexdigest())
        if not artifact.model_path.is_file():
            raise ArtifactError(f"{artifact.model_path} does not exist, but {MANIFEST_FILE} names it.")
        return artifact

    def check_files(self) -> None:
        """Compare every file with the hash in the manifest, which must name all files that the model is read from."""
        if self.model_path.name not in self.manifest.files:
            raise ArtifactError(
                f"{self.folder / MANIFEST_FILE} has no hash of {self.model_path.name}; export it again."
            )
        for name, expected in self.manifest.files.items():
            path = self.folder / name
            if Path(name).name != name or not path.is_file():
                raise ArtifactError(f"{path} does not exist, but {MANIFEST_FILE} names it.")
            if sha256(path) != expected.sha256:
                raise ArtifactError(f"{path} is not the file that was exported: its hash differs from the manifest's.")
        more = external_files(self.model_path) - self.manifest.files.keys() if self.manifest.format == "onnx" else ()
        for name in sorted(more):
            raise ArtifactError(
                f"{self.model_path} takes weights from {name!r}, which {MANIFEST_FILE} does not list, so they "
                "cannot be checked. Export the model again."
            )


def describe_files(folder: Path) -> dict[str, StoredFile]:
    """Size and hash of every file in a folder, for its manifest."""
    return {
        path.name: StoredFile(path.stat().st_size, sha256(path))
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST_FILE
    }


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
