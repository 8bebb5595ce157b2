"""Versions, manifests, files alone and quantised artifacts: what is compared, and what nothing excuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from sabotage import broken_onnx, change_weight, clip, signed
from structures import Compare

from osa_runtime.artifact import MANIFEST_FILE
from osa_runtime.errors import ArtifactError
from osa_runtime.quantization import quantize
from osa_runtime.verification import VerifySettings, verify
from osa_runtime.verification import compare as compare_artifacts
from osa_runtime.verification.structure.check import guessed_manifest

Deep = Callable[..., Path]
Checkpoint = Callable[[str], Path]


def test_other_versions_leave_the_numbers_and_the_weights(deep: Deep, checkpoint: Checkpoint, tmp_path: Path) -> None:
    artifact = broken_onnx(deep("vit"), tmp_path / "older", clip)
    versions = json.loads((artifact / MANIFEST_FILE).read_text())["versions"]
    signed(artifact, versions=versions | {"torch": "2.1.0"})
    certificate = verify(artifact, checkpoint("vit")).certificate
    assert certificate.basis == "numbers only"
    assert any("torch 2.1.0" in note for note in certificate.notes)
    assert any(check.name == "weights" and check.passed for check in certificate.checks)


def test_other_versions_do_not_excuse_other_weights(deep: Deep, compare: Compare, tmp_path: Path) -> None:
    artifact = broken_onnx(
        deep("vit"), tmp_path / "older", lambda m: change_weight(m, "head.weight", lambda w: w + 1e-4)
    )
    found = compare(signed(artifact, versions={}), "vit")
    assert [(check.name, check.passed) for check in found.checks] == [("weights", False), ("manifest", True)]
    assert "head.weight" in found.checks[0].detail


def test_other_versions_do_not_excuse_what_the_manifest_says(deep: Deep, compare: Compare, tmp_path: Path) -> None:
    artifact = broken_onnx(deep("vit"), tmp_path / "older", clip)
    pixels = {"images": {"formula": "(pixel - mean) / std", "mean": [0.5], "std": [0.1], "pixels": [0.0, 16.0]}}
    for field, value in {"preprocessing": pixels, "class_names": [f"c{i}" for i in range(10)]}.items():
        found = compare(signed(shutil.copytree(artifact, tmp_path / field), versions={}, **{field: value}), "vit")
        assert [(check.name, check.passed) for check in found.checks] == [("weights", True), ("manifest", False)]
        assert f"manifest {field}" in found.checks[1].detail


def sparse_weight(model: onnx.ModelProto) -> None:
    """With the name of a dense one."""
    dense = next(t for t in model.graph.initializer if t.name == "embed.bias")
    values = helper.make_tensor(dense.name, onnx.TensorProto.FLOAT, [1], [9.0])
    indices = helper.make_tensor("indices", onnx.TensorProto.INT64, [1], [0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, list(dense.dims)))


@pytest.mark.parametrize("versions", [{"versions": {}}, {}], ids=["other versions", "these versions"])
@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ({"export": {"squarings": "bogus"}}, "squarings='bogus': expected auto"),
        ({"quantization": {"weights": "int4", "activations": "static"}}, "weights='int4': expected int8"),
        ({"quantization": {"weights": "int8", "activations": "some"}}, "activations='some': expected none"),
        ({"quantization": {"weights": "int8", "activations": "none", "kept": ["nothing"]}}, "nothing"),
        ({"quantization": {"weights": "int8", "activations": "static"}, "dtype": "w8a8"}, "expected one for each of"),
        ({"opset": 99}, "opset=99: expected 18"),
    ],
    ids=str,
)
def test_claims_that_cannot_be_repeated_fail(
    versions: dict[str, object], claim: dict[str, object], said: str, deep: Deep, compare: Compare, tmp_path: Path
) -> None:
    shutil.copytree(deep("vit"), tmp_path / "claiming")
    (check,) = compare(signed(tmp_path / "claiming", **versions, **claim), "vit").checks
    assert (check.name, check.passed) == ("structure", False)
    assert said in check.detail


def test_other_versions_do_not_excuse_a_malformed_graph(deep: Deep, compare: Compare, tmp_path: Path) -> None:
    artifact = broken_onnx(deep("vit"), tmp_path / "sparse", sparse_weight)
    (check,) = compare(signed(artifact, versions={}), "vit").checks
    assert (check.name, check.passed) == ("structure", False)
    assert "the weight 'embed.bias' is sparse" in check.detail


def test_doubtful_external_data_is_named(deep: Deep, compare: Compare, tmp_path: Path) -> None:
    artifact = shutil.copytree(deep("vit", external_data=True), tmp_path / "more")
    model = onnx.load(artifact / "model.onnx", load_external_data=False)
    tensor = next(t for t in model.graph.initializer if t.external_data)
    tensor.external_data.add(key="prepacked_0", value="x|0|16|1")
    (artifact / "model.onnx").write_bytes(model.SerializeToString())
    (check,) = compare(signed(artifact), "vit").checks
    assert (check.name, check.passed) == ("structure", False)
    assert "external data has length, location, offset, prepacked_0" in check.detail


@pytest.mark.parametrize("dtype", ["w8", "w8a8"])
def test_a_type_that_the_file_does_not_have_is_not_believed(
    dtype: str, deep: Deep, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    claiming = signed(shutil.copytree(deep("vit"), tmp_path / "claiming"), dtype=dtype)
    said = f"precision: the manifest says {dtype}, but no weight in the file has 8 bits"
    settings = VerifySettings(batches=[1], quick=True)
    assert said in verify(claiming, settings=settings).certificate.failures()
    assert said in compare_artifacts(claiming, deep("vit"), settings).certificate.failures()


def test_other_versions_do_not_excuse_other_weights_of_8_bits(deep: Deep, compare: Compare, tmp_path: Path) -> None:
    small = quantized(deep("vit"), tmp_path / "small", "none")

    def double(model: onnx.ModelProto) -> None:
        clip(model)
        weight = next(t for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT8 and len(t.dims) == 2)
        change_weight(model, weight.name, lambda w: w // 2)

    assert [check.passed for check in compare(signed(small, versions={}), "vit").checks] == [True]
    found = compare(signed(broken_onnx(small, tmp_path / "broken", double), versions={}), "vit")
    assert [(check.name, check.passed) for check in found.checks] == [("weights", False), ("manifest", True)]


def test_a_file_alone_is_compared_with_the_defaults(deep: Deep, compare: Compare) -> None:
    assert [check.name for check in compare(deep("vit") / "model.onnx", "vit").checks] == ["structure"]
    fixed = compare(deep("encoder", squarings=4, form="lowrank") / "model.onnx", "encoder")
    assert [(check.name, check.passed) for check in fixed.checks] == [("weights", True)]
    assert "numbers only" in fixed.notes[0]


def test_a_file_alone_whose_export_cannot_be_repeated_has_its_weights_compared(
    deep: Deep, compare: Compare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "osa_runtime.verification.structure.check.guessed_manifest",
        lambda subject: replace(guessed_manifest(subject), opset=99),
    )
    found = compare(deep("vit") / "model.onnx", "vit")
    assert [(check.name, check.passed) for check in found.checks] == [("weights", True)]
    assert "numbers only: the export cannot be repeated" in found.notes[0]
    other = broken_onnx(
        deep("vit"),
        tmp_path / "broken",
        lambda m: change_weight(m, "stack.blocks.1.mlp.expand/MatMul.weight", lambda w: w[::-1]),
    )
    assert not compare(other / "model.onnx", "vit").checks[0].passed


def quantized(source: Path, out: Path, activations: str) -> Path:
    images = np.random.default_rng(0).normal(size=(16, 1, 8, 8)).astype(np.float32)
    np.savez(out.parent / "examples.npz", images=images)
    examples = out.parent / "examples.npz" if activations == "static" else None
    return quantize(source, out, activations=activations, calibration=examples, keep=["head"]).artifact.folder


@pytest.mark.parametrize("activations", ["none", "dynamic", "static"])
def test_a_quantised_artifact_is_compared_with_a_fresh_quantisation(
    activations: str, deep: Deep, compare: Compare, tmp_path: Path
) -> None:
    small = quantized(deep("vit"), tmp_path / "small", activations)
    found = compare(small, "vit")
    assert [check.passed for check in found.checks] == [True], found
    assert found.notes == ()
    assert ("with the recorded ranges" in found.checks[0].detail) == (activations == "static")
    check = compare(broken_onnx(small, tmp_path / "broken", clip), "vit").checks[0]
    assert "an extra node Clip" in check.detail


def test_recorded_ranges_are_those_of_the_graph(deep: Deep, compare: Compare, tmp_path: Path) -> None:
    small = quantized(deep("vit"), tmp_path / "small", "static")
    described = json.loads((small / MANIFEST_FILE).read_text())["quantization"]
    ranges = described["activation_ranges"]
    assert len(ranges) == described["quantized"]
    name, (low, high) = next(iter(ranges.items()))

    def detail(changed: object) -> str:
        check = compare(signed(small, quantization=described | {"activation_ranges": changed}), "vit").checks[0]
        assert (check.name, check.passed) == ("structure", False)
        return check.detail

    assert f"{name}_scale: 1 of 1 values differs" in detail(ranges | {name: [low, 2 * high]})
    for changed in ({}, ranges | {"other": [0.0, 1.0]}, {key: ranges[key] for key in ranges if key != name}):
        assert "expected one for each of" in detail(changed)
    for pair in ([high, low], [low], [low, 0.1]):
        assert f"that of {name} is {tuple(pair)!r}" in detail(ranges | {name: pair})
    for pair in ([low, "much"], [low, float("inf")], None):
        with pytest.raises(ArtifactError, match=r"activation_ranges|finite"):
            detail(ranges | {name: pair})


def test_a_scale_that_no_range_gives_is_named(deep: Deep, compare: Compare, tmp_path: Path) -> None:
    small = quantized(deep("vit"), tmp_path / "small", "static")
    name = next(iter(json.loads((small / MANIFEST_FILE).read_text())["quantization"]["activation_ranges"]))

    def widen(model: onnx.ModelProto) -> None:
        change_weight(model, f"{name}_scale", lambda scale: scale * np.float32(1.01))

    check = compare(broken_onnx(small, tmp_path / "broken", widen), "vit").checks[0]
    assert f"{name}_scale: 1 of 1 values differs" in check.detail
