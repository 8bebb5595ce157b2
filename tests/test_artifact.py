"""Manifests come back as they were, and damage is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from osa_runtime.artifact import Artifact, Manifest, TensorSpec, describe_files
from osa_runtime.errors import ArtifactError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.onnx").write_bytes(b"model")
    manifest = Manifest(
        format="onnx",
        inputs=(TensorSpec("x", "float32", ("batch", 3)),),
        outputs=(TensorSpec("y", "float32", ("batch",)),),
        parameters=7,
        axes={"tokens": {"max": 9}},
        opset=18,
        osa={"squarings": "auto"},
        files=describe_files(tmp_path),
    )
    (tmp_path / "manifest.json").write_text(manifest.to_json())
    return tmp_path


def edit(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_round_trip(folder: Path) -> None:
    artifact = Artifact.open(folder)
    assert artifact.model_path == folder / "model.onnx"
    assert artifact.manifest.inputs == (TensorSpec("x", "float32", ("batch", 3)),)
    assert str(artifact.manifest.inputs[0]) == "x: float32[batch, 3]"
    assert Manifest.from_json(artifact.manifest.to_json(), "x") == artifact.manifest
    artifact.check_files()


def test_a_changed_model_is_noticed(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"Model")
    with pytest.raises(ArtifactError, match=r"model\.onnx is not the file that was exported"):
        Artifact.open(folder).check_files()


def test_a_file_outside_the_folder_is_not_touched(folder: Path) -> None:
    edit(folder, files=describe_files(folder) | {"../secret": {"sha256": "0"}})
    with pytest.raises(ArtifactError, match="does not exist"):
        Artifact.open(folder).check_files()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "manifest.json").unlink(), "expected a folder that `osa export` wrote"),
        (lambda f: (f / "model.onnx").unlink(), "does not exist, but manifest.json names it"),
        (lambda f: (f / "manifest.json").write_text("{"), "not valid JSON"),
        (lambda f: (f / "manifest.json").write_bytes(b"\xff\xfe\x00"), "cannot be read"),
        (lambda f: (f / "manifest.json").write_text("[]"), "not a manifest of version 1"),
        (lambda f: edit(f, version=2), "not a manifest of version 1"),
        (lambda f: edit(f, format="tflite"), "names the format 'tflite'"),
        (lambda f: edit(f, surprise=1), "lacks or misspells a field"),
        (lambda f: edit(f, inputs=[{"name": "x"}]), "lacks or misspells a field"),
        (lambda f: edit(f, inputs=[{"name": "x", "dtype": "f", "shape": [None]}]), "must be numbers or names"),
    ],
    ids=["no manifest", "no model", "no JSON", "no text", "list", "version", "format", "field", "input", "axis"],
)
def test_damage_is_named(folder: Path, damage: object, message: str) -> None:
    damage(folder)  # type: ignore[operator]
    with pytest.raises(ArtifactError, match=message):
        Artifact.open(folder)
