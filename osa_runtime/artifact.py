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
from pathlib import Path
from typing import Any

from osa_runtime.errors import ArtifactError
from osa_runtime.pixels import Standardisation

VERSION = 1
MANIFEST_FILE = "manifest.json"
MODEL_FILES = {"onnx": "model.onnx", "torchscript": "model.pt", "pt2": "model.pt2"}


@dataclass(frozen=True)
class TensorSpec:
    """One input or output. An axis is a number when it is fixed and a name when it is dynamic."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


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

    def to_json(self) -> str:
        return json.dumps({"version": VERSION} | dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"

    def standardisation(self, name: str) -> Standardisation | None:
        """What is done to the pixels of an input before the model sees them; None where nobody said."""
        fields = self.preprocessing.get(name)
        return Standardisation.from_dict(fields) if fields else None

    def preprocessing_parameters(self) -> dict[str, str]:
        """The same for model configurations, whose parameters are texts."""
        return {f"preprocessing.{name}": json.dumps(fields) for name, fields in self.preprocessing.items()}

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
                fields[key] = tuple(_spec(item) for item in fields[key])
            fields["attentions"] = tuple(_call(item) for item in fields.get("attentions", ()))
            manifest = cls(**fields)
            _check_types(manifest)
        except (TypeError, KeyError, ValueError) as error:
            raise ArtifactError(f"{where} lacks or misspells a field ({error}); export the model again.") from error
        if manifest.format not in MODEL_FILES:
            raise ArtifactError(f"{where} names the format {manifest.format!r}, expected {', '.join(MODEL_FILES)}.")
        return manifest


@dataclass(frozen=True)
class Artifact:
    """An exported folder."""

    folder: Path
    manifest: Manifest

    @property
    def model_path(self) -> Path:
        return self.folder / MODEL_FILES[self.manifest.format]

    @classmethod
    def open(cls, folder: str | Path) -> Artifact:
        """Read the manifest of an exported folder. The model file itself is not read."""
        path = Path(folder) / MANIFEST_FILE
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ArtifactError(f"{path} does not exist; expected a folder that `osa export` wrote.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactError(f"{path} cannot be read: {error}") from error
        artifact = cls(Path(folder), Manifest.from_json(text, str(path)))
        if not artifact.model_path.is_file():
            raise ArtifactError(f"{artifact.model_path} does not exist, but {MANIFEST_FILE} names it.")
        return artifact

    def check_files(self) -> None:
        """Compare every file with the hash in the manifest."""
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


def _check_types(manifest: Manifest) -> None:
    """What others rely on without looking: a manifest may come from anywhere."""
    for name in ("axes", "values"):
        found = getattr(manifest, name)
        ranges = found.values() if isinstance(found, dict) else [None]
        if not all(isinstance(r, dict) and all(type(size) is int for size in r.values()) for r in ranges):
            raise TypeError(f"{name} must map names to ranges of whole numbers")
    if not isinstance(manifest.preprocessing, dict):
        raise TypeError("preprocessing must map names of inputs to what is done to their pixels")
    for fields in manifest.preprocessing.values():
        Standardisation.from_dict(fields)
    entries = manifest.files.values() if isinstance(manifest.files, dict) else [None]
    if not all(isinstance(entry, dict) for entry in entries):
        raise TypeError("files must map names to their size and hash")
    for name in ("osa", "source", "versions", "quantization"):
        if not isinstance(getattr(manifest, name), dict):
            raise TypeError(f"{name} must be an object")
    if not isinstance(manifest.format, str):
        raise TypeError("format must be a name")


def _spec(item: dict[str, Any]) -> TensorSpec:
    shape = tuple(item["shape"])
    if not all(isinstance(axis, (int, str)) for axis in shape):
        raise ValueError(f"axes of {item['name']} must be numbers or names")
    return TensorSpec(str(item["name"]), str(item["dtype"]), shape)


def _call(item: dict[str, Any]) -> dict[str, Any]:
    names = [item["name"], item["output"], *item["inputs"]]
    if len(item["inputs"]) not in (4, 5) or not all(isinstance(name, str) for name in names):
        raise ValueError("an attention must have a name, an output, and the inputs q, k, v, scale and mask")
    known = {"name": item["name"], "inputs": list(item["inputs"]), "output": item["output"]}
    if not isinstance(item.get("squarings", ""), str):
        raise ValueError("squarings of an attention must be the name of a value")
    return known | {key: item[key] for key in ("scale", "squarings") if key in item}
