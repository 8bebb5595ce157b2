"""Manifests come back as they were, and damage is named."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osa_runtime.artifact import Artifact, describe_files
from osa_runtime.errors import ArtifactError, InputError
from osa_runtime.interface import Roles, TensorSpec
from osa_runtime.manifest import (
    AttentionCall,
    AttentionSettings,
    CalibrationRecord,
    ExportRecord,
    Manifest,
    Quantization,
    StoredFile,
)
from osa_runtime.parity.feeds import sweep
from osa_runtime.parity.tolerances import relative_tolerance
from osa_runtime.runtime.input_checks import CalibratedRanges
from osa_runtime.runtime.onnx_session import counted_layers
from osa_runtime.sample_inputs import sample_inputs


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
        osa=AttentionSettings(),
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
    edit(
        folder,
        files=json.loads((folder / "manifest.json").read_text())["files"] | {"../secret": {"size": 0, "sha256": "0"}},
    )
    with pytest.raises(ArtifactError, match="does not exist"):
        Artifact.open(folder).check_files()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "manifest.json").unlink(), "has a model file but no manifest.json; give the file itself"),
        (lambda f: (f / "model.onnx").unlink(), "does not exist, but manifest.json names it"),
        (lambda f: (f / "manifest.json").write_text("{"), "not valid JSON"),
        (lambda f: (f / "manifest.json").write_bytes(b"\xff\xfe\x00"), "cannot be read"),
        (lambda f: (f / "manifest.json").write_text("[]"), "not a manifest of version 1"),
        (lambda f: edit(f, version=2), "not a manifest of version 1"),
        (lambda f: edit(f, format="tflite"), "format is 'tflite', expected onnx"),
        (lambda f: edit(f, surprise=1), "lacks or misspells a field"),
        (lambda f: edit(f, inputs=[{"name": "x"}]), "lacks or misspells a field"),
        (lambda f: edit(f, inputs=[{"name": "x", "dtype": "f", "shape": [1.5]}]), "shape\\[0\\] is .*, expected"),
    ],
    ids=["no manifest", "no model", "no JSON", "no text", "list", "version", "format", "field", "input", "axis"],
)
def test_damage_is_named(folder: Path, damage: object, message: str) -> None:
    damage(folder)  # type: ignore[operator]
    with pytest.raises(ArtifactError, match=message):
        Artifact.open(folder)


PIXELS = {"formula": "(pixel - mean) / std", "mean": [0.5], "std": [0.25], "pixels": [0.0, 1.0]}
CALL = AttentionCall("a", ("q", "k", "v", "s"), "o", squarings="n", scale=[0.1, 0.2])
FULL = Manifest(
    format="onnx",
    inputs=(TensorSpec("images", "float32", ("batch", 1, 4, 4)), TensorSpec("ids", "int64", ("batch", "tokens"))),
    outputs=(TensorSpec("logits", "float32", ("batch", 2)),),
    parameters=7,
    axes={"tokens": {"min": 2, "max": 9}},
    values={"ids": {"min": 0, "max": 10}},
    preprocessing={"images": PIXELS},
    dtype="w8a8",
    depth=3,
    opset=18,
    functions="keep",
    osa=AttentionSettings("dense", "taylor", 4, 8.0),
    attentions=(CALL,),
    files={"model.onnx": StoredFile(5, "0")},
    source={"model": "SkiplessViT", "sha256": "0"},
    versions={"torch": "2.13.0"},
    quantization=Quantization(
        weights="int8",
        activations="static",
        weight_bits=7,
        quantized=1,
        kept=("head",),
        source={"model.onnx": "0"},
        versions={"onnx": "1.23.2"},
        calibration=CalibrationRecord(3, "0", {"images": (0.0, 1.0)}),
        activation_ranges={"x": (0.0, 1.0)},
        deviation={"logits": {"max_rel": 0.1, "rms": 0.1, "top1": None}},
    ),
    roles=Roles("batch"),
    class_names=("cat", "dog"),
    export=ExportRecord(None, "taylor", 4, False, {"images": (2, 1, 4, 4), "ids": (2, 5)}, {"batch": 1}),
)
ODD = [None, True, -1, 0, 10**30, 1.5, float("inf"), float("nan"), "", "a", [], [[]], ["a"], {}, {"a": []}, {"min": 5}]


def changed_everywhere(value: Any, odd: Any) -> Iterator[Any]:
    """The value with one of its parts, at any depth, replaced by another."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(parts):
        for changed in (odd, *changed_everywhere(inner, odd)):
            copy = value.copy()
            copy[key] = changed
            yield copy


def use(manifest: Manifest) -> None:
    """Read a manifest like verification, the server and the command line before they run a model."""
    interface = manifest.interface
    with contextlib.suppress(InputError):  # inputs that are too large, say
        next(iter(sweep(interface, batches=[1])))
        for kind in ("pixels", "strokes"):
            sample_inputs(interface, {axis: interface.least(axis) for axis in interface.names}, kind)
    relative_tolerance(
        manifest.format, manifest.dtype, manifest.depth or 1, (manifest.osa and manifest.osa.largest_norm) or 1.0
    )
    for call in manifest.attentions:
        np.asarray(1.0 if call.scale is None else call.scale, np.float32)
    _ = f"{manifest.parameters:,}", manifest.parameters < 7, manifest.configuration_parameters()
    assert isinstance(counted_layers(manifest), dict)
    CalibratedRanges(manifest).beyond({"images": np.ones((1, 1, 4, 4))})
    json.loads(manifest.to_json())


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_a_manifest_is_usable_or_refused(odd: object) -> None:
    refused, cases = 0, list(changed_everywhere(json.loads(FULL.to_json()), odd))
    for fields in cases:
        try:
            manifest = Manifest.from_json(json.dumps(fields), "manifest.json")
        except ArtifactError as error:
            assert len(str(error)) < 500  # noqa: PT017 - one of two good ends
            refused += 1
        else:
            use(manifest)
    assert len(cases) > 100
    assert refused > len(cases) // 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"osa": {"largest_norm": "a"}}, "osa.largest_norm is 'a', expected float"),
        ({"osa": {"largest_norm": -1}}, "osa.largest_norm is -1, expected a number above 0"),
        ({"values": {"y": {"min": 0, "max": 3}}}, "values has a range of 'y'"),
        ({"quantization": {"versions": 5}}, "quantization lacks .*activations"),
        ({"dtype": "fp8"}, "dtype is 'fp8', expected one of fp32, fp16, w8, w8a8"),
        ({"dtype": ["fp32"]}, r"dtype is .*fp32.*, expected str"),
        ({"dtype": "w8", "format": "pt2"}, "dtype is 'w8', expected one of fp32, fp16"),
        ({"parameters": "x"}, "parameters is 'x', expected int"),
        ({"class_names": "ab"}, "class_names is 'ab', expected a list"),
        (
            {"preprocessing": {"x": PIXELS}},
            "preprocessing names the input 'x', which does not hold images: there are none",
        ),
    ],
    ids=str,
)
def test_fields_of_the_wrong_kind_are_named(folder: Path, changes: dict[str, object], message: str) -> None:
    edit(folder, **changes)
    with pytest.raises(ArtifactError, match=message):
        Artifact.open(folder)


def test_preprocessing_has_the_channels_of_its_input() -> None:
    pixels = PIXELS | {"mean": [0.5] * 3, "std": [0.25] * 3}
    with pytest.raises(ArtifactError, match="'images' has 3 means, but the input has 1 channels"):
        Manifest.from_json(replace(FULL, preprocessing={"images": pixels}).to_json(), "manifest.json")
