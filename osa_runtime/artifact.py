"""The exported folder: a model file, and ``manifest.json`` that says what it is. Nothing here needs torch or onnx.

model.onnx | model.pt | model.pt2    the model
model.onnx.data                      its weights, where they are kept outside
manifest.json                        format, inputs and outputs, settings, hashes, versions
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from osa_runtime.errors import ArtifactError
from osa_runtime.external_data import external_files
from osa_runtime.formats import FORMATS
from osa_runtime.interface import Interface, Roles, TensorSpec
from osa_runtime.manifest_checks import check_manifest
from osa_runtime.pixels import Standardisation

__all__ = ["Artifact", "Manifest", "TensorSpec"]

VERSION = 1
MANIFEST_FILE = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """What an exported model is."""

    format: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: int
    axes: dict[str, dict[str, int]] = field(default_factory=dict)  # the range of each dynamic axis that has one
    values: dict[str, dict[str, int]] = field(default_factory=dict)  # the range of the ids that an input may hold
    preprocessing: dict[str, dict[str, Any]] = field(default_factory=dict)  # of pixels, for inputs that are images
    dtype: str = "fp32"
    depth: int | None = None  # how many matrices the signal passes, over which rounding adds up
    opset: int | None = None
    functions: str | None = None
    osa: dict[str, Any] = field(default_factory=dict)
    attentions: tuple[dict[str, Any], ...] = ()  # in an ONNX graph: the names of each call's inputs and output
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    quantization: dict[str, Any] = field(default_factory=dict)  # what was stored in fewer bits, how, and from what
    roles: Roles | None = None  # None in manifests of earlier releases, which did not look
    class_names: tuple[str, ...] = ()  # of the last axis of the logits, for models that classify
    export: dict[str, Any] = field(default_factory=dict)  # what else was asked for, so that the export can be repeated

    def to_json(self) -> str:
        return json.dumps({"version": VERSION} | dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"

    @cached_property
    def interface(self) -> Interface:
        pixels = {name: Standardisation.from_dict(fields) for name, fields in self.preprocessing.items()}
        return Interface(self.inputs, self.outputs, self.axes, self.values, pixels, self.roles)

    def configuration_parameters(self) -> dict[str, str]:
        """What clients may want to know, for model configurations, whose parameters are texts."""
        found = {f"preprocessing.{name}": json.dumps(fields) for name, fields in self.preprocessing.items()}
        return found | ({"class_names": json.dumps(self.class_names, ensure_ascii=False)} if self.class_names else {})

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"{where} is not valid JSON ({error}); export the model again.") from error
        if not isinstance(fields, dict) or fields.pop("version", None) != VERSION:
            raise ArtifactError(f"{where} is not a manifest of version {VERSION}; export the model again.")
        try:
            for key in ("inputs", "outputs"):
                fields[key] = tuple(_spec(item) for item in _listed(fields[key], key))
            fields["attentions"] = tuple(_call(item) for item in _listed(fields.get("attentions", []), "attentions"))
            fields["roles"] = _roles(fields.get("roles"))
            fields["class_names"] = tuple(_listed(fields.get("class_names", []), "class_names"))
            manifest = cls(**fields)
            check_manifest(manifest)
        except (TypeError, KeyError, ValueError, OverflowError, RecursionError) as error:
            raise ArtifactError(f"{where} lacks or misspells a field ({error}); export the model again.") from error
        if manifest.format not in FORMATS:
            raise ArtifactError(f"{where} names the format {manifest.format!r}, expected {', '.join(FORMATS)}.")
        return manifest


@dataclass(frozen=True)
class Artifact:
    """An exported folder. ``manifest_sha256`` is the hash of the very bytes that ``manifest`` was read from."""

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
            if sha256(path) != expected.get("sha256"):
                raise ArtifactError(f"{path} is not the file that was exported: its hash differs from the manifest's.")
        more = external_files(self.model_path) - self.manifest.files.keys() if self.manifest.format == "onnx" else ()
        for name in sorted(more):
            raise ArtifactError(
                f"{self.model_path} takes weights from {name!r}, which {MANIFEST_FILE} does not list, so they may be "
                "any. Export the model again."
            )


def describe_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and hash of every file in a folder, for its manifest."""
    return {
        path.name: {"size": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST_FILE
    }


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _listed(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{name} must be a list")
    return value


def _spec(item: dict[str, Any]) -> TensorSpec:
    return TensorSpec(item["name"], item["dtype"], tuple(_listed(item["shape"], "shape")))


def _roles(item: dict[str, Any] | None) -> Roles | None:
    return None if item is None else Roles(**item)


def _call(item: dict[str, Any]) -> dict[str, Any]:
    if len(_listed(item["inputs"], "inputs")) not in (4, 5):
        raise ValueError("an attention must have a name, an output, and the inputs q, k, v, scale and mask")
    known = {"name": item["name"], "inputs": item["inputs"], "output": item["output"]}
    return known | {key: item[key] for key in ("scale", "squarings") if key in item}
