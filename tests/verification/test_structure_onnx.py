"""Whatever is edited in an exported ONNX model or its manifest is named; what is only renamed or reordered is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from sabotage import broken_onnx, change_weight, drop_squaring, signed
from structures import Compare

from osa_runtime.artifact import MANIFEST_FILE
from osa_runtime.errors import ArtifactError
from osa_runtime.quantization import quantize
from osa_runtime.verification import VerifyOptions, verify
from osa_runtime.verification import compare as compare_artifacts
from osa_runtime.verification.structure.check import guessed_manifest
from osa_runtime.verification.structure.graph import MalformedGraphError
from osa_runtime.verification.structure.onnx_graph import onnx_model

Deep = Callable[..., Path]
Checkpoint = Callable[[str], Path]
MLP = "stack.blocks.1.mlp"


def node(model: onnx.ModelProto, operator: str, part: str = "") -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.op_type == operator and part in n.name)


def constant(model: onnx.ModelProto, name: str, value: object) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    return name


def before_output(model: onnx.ModelProto, *nodes: onnx.NodeProto) -> None:
    """Nodes that read ``answer``, the logits as they were, and write ``logits``."""
    for found in model.graph.node:
        found.output[:] = ["answer" if name == "logits" else name for name in found.output]
    model.graph.node.extend(nodes)


def negated_when(model: onnx.ModelProto, condition: str, *nodes: onnx.NodeProto) -> None:
    negated = helper.make_node("Neg", ["answer"], ["negated"])
    before_output(model, *nodes, negated, helper.make_node("Where", [condition, "negated", "answer"], ["logits"]))


def negate_large_batches(model: onnx.ModelProto) -> None:
    shape = helper.make_node("Shape", ["tokens"], ["shape"], end=1)
    negated_when(model, "many", shape, helper.make_node("Greater", ["shape", constant(model, "8", [8])], ["many"]))


def negate_some_lengths(model: onnx.ModelProto) -> None:
    shape = helper.make_node("Shape", ["tokens"], ["length"], start=1)
    low = helper.make_node("Greater", ["length", constant(model, "64", [64])], ["above"])
    high = helper.make_node("Less", ["length", constant(model, "512", [512])], ["below"])
    negated_when(model, "both", shape, low, high, helper.make_node("And", ["above", "below"], ["both"]))


def negate_large_answers(model: onnx.ModelProto) -> None:
    size = helper.make_node("Abs", ["answer"], ["size"])
    negated_when(
        model, "large", size, helper.make_node("Greater", ["size", constant(model, "e9", np.float32(1e9))], ["large"])
    )


def clip(model: onnx.ModelProto) -> None:
    low, high = constant(model, "low", np.float32(-20)), constant(model, "high", np.float32(20))
    before_output(model, helper.make_node("Clip", ["answer", low, high], ["logits"]))


def nan_to_zero(model: onnx.ModelProto) -> None:
    nodes = [helper.make_node("IsNaN", ["answer"], ["nan"])]
    nodes += [helper.make_node("Where", ["nan", constant(model, "zero", np.float32(0)), "answer"], ["logits"])]
    before_output(model, *nodes)


def ignore_mask(model: onnx.ModelProto) -> None:
    for found in model.graph.node:
        found.input[:] = ["all" if name == "mask" else name for name in found.input]
    model.graph.node.insert(0, helper.make_node("Or", ["mask", constant(model, "true", True)], ["all"]))


def ignore_mask_in_one_layer(model: onnx.ModelProto) -> None:
    call = node(model, "OrthogonalAttention", "blocks.2")
    model.graph.node.insert(0, helper.make_node("Or", [call.input[4], constant(model, "true", True)], ["all"]))
    call.input[4] = "all"


def replace_one_id(model: onnx.ModelProto) -> None:
    change_weight(model, "embed.weight", lambda table: np.concatenate([table[:7], table[:1], table[8:]]))


def swap_inputs(model: onnx.ModelProto) -> None:
    call = node(model, "OrthogonalAttention", "blocks.1")
    call.input[0], call.input[1] = call.input[1], call.input[0]


def in_function(model: onnx.ModelProto) -> None:
    function = next(f for f in model.functions if f.name == "OrthogonalAttention")
    function.node[-1].op_type = {"Add": "Sub", "CastLike": "Identity"}[function.node[-1].op_type]


def in_a_body(model: onnx.ModelProto) -> None:
    """The first product inside a branch or loop of any function."""
    for function in model.functions:
        for found in function.node:
            for attribute in found.attribute:
                for inner in attribute.g.node:
                    if inner.op_type in ("Mul", "Add"):
                        inner.op_type = "Sub"
                        return
    raise AssertionError("no function has a body with a product")


def override_weight(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))


def redefine_operator(model: onnx.ModelProto) -> None:
    """A function under the name of a standard operator."""
    body = [helper.make_node("Neg", ["x"], ["y"])]
    opsets = [helper.make_opsetid("", 18)]
    model.functions.append(helper.make_function("", "Softplus", ["x"], ["y"], body, opsets))
    before_output(model, helper.make_node("Softplus", ["answer"], ["logits"]))


def unread_node(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Neg", ["logits"], ["unread"]))


def state_a_shape(model: onnx.ModelProto) -> None:
    value = next(v for v in model.graph.value_info if v.type.tensor_type.shape.dim)
    value.type.tensor_type.shape.dim[0].dim_value = 2


def change_attribute(model: onnx.ModelProto) -> None:
    node(model, "LeakyRelu", "blocks.1").attribute[0].f += 0.01


def configure_the_runtime(model: onnx.ModelProto) -> None:
    helper.set_model_props(model, {"ort_config": "{}"})


def one_bit(array: np.ndarray) -> np.ndarray:
    array[3, 7] = np.nextafter(array[3, 7], np.float32(10))
    return array


@pytest.mark.parametrize(
    ("breaking", "said"),
    [
        (
            lambda m: change_weight(m, f"{MLP}.expand/MatMul.weight", one_bit),
            f"{MLP}.expand/MatMul.weight: 1 of 512 values differs, at (3, 7)",
        ),
        (negate_large_batches, "an extra node Where between head/Gemm and output logits"),
        (negate_some_lengths, "an extra node Where between head/Gemm and output logits"),
        (negate_large_answers, "an extra node Where between head/Gemm and output logits"),
        (clip, "an extra node Clip between head/Gemm and output logits"),
        (nan_to_zero, "an extra node Where between head/Gemm and output logits"),
        (ignore_mask, "an extra node Or between mask and"),
        (ignore_mask_in_one_layer, "stack.blocks.2.attention/OrthogonalAttention"),
        (replace_one_id, "embed.weight: 16 of 176 values differ, at (7, 0)"),
        (drop_squaring, "in the function ai.osa."),
        (swap_inputs, "stack.blocks.1.attention.project/Slice"),
        (in_function, "in the function ai.osa.OrthogonalAttention"),
        (in_a_body, "in the function ai.osa."),
        (override_weight, "more than one way: two things have the name 'embed.weight'"),
        (redefine_operator, "an extra node Softplus"),
        (unread_node, "nodes that nothing reads: 1 extra"),
        (state_a_shape, "states a type or shape"),
        (change_attribute, f"{MLP}/LeakyRelu: alpha is"),
        (configure_the_runtime, "{'metadata_props': '[key: \"ort_config\""),
    ],
)
def test_an_edit_is_named(
    breaking: Callable[[onnx.ModelProto], None], said: str, deep: Deep, compare: Compare, tmp_path: Path
) -> None:
    check = compare(broken_onnx(deep("encoder"), tmp_path / "broken", breaking), "encoder").checks[0]
    assert (check.name, check.passed) == ("structure", False)
    assert said in check.detail


@pytest.mark.parametrize(
    ("field", "change", "said"),
    [
        ("values", {"tokens": {"min": 0, "max": 9}}, "manifest values.tokens.max is 9, expected 10"),
        ("axes", {"tokens": {"max": 80}}, "manifest axes.tokens.max is 80, expected 40"),
        ("depth", 3, "manifest depth is 3"),
        ("class_names", ["a", "b", "c"], "manifest class_names"),
        ("export", {"squarings": 30}, "the export cannot be repeated"),
        ("attentions", [], "manifest attentions"),
    ],
)
def test_an_edit_of_the_manifest_is_named(
    field: str, change: object, said: str, deep: Deep, compare: Compare, tmp_path: Path
) -> None:
    shutil.copytree(deep("encoder"), tmp_path / "edited")
    check = compare(signed(tmp_path / "edited", **{field: change}), "encoder").checks[0]
    assert not check.passed
    assert said in check.detail


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("vit", {}),
        ("branching", {}),
        ("branching", {"functions": "inline"}),
        ("branching", {"squarings": 4, "form": "lowrank"}),
        ("vit", {"form": "dense", "approximant": "pade"}),
        ("vit", {"external_data": True, "opset": 20}),
        ("branching", {"dtype": "fp16"}),
        ("encoder", {"static": True}),
        ("vit", {"format": "pt2"}),
        ("encoder", {"format": "pt2"}),
        ("vit", {"format": "torchscript", "dtype": "fp16"}),
        ("branching", {"format": "torchscript", "dtype": "fp16"}),
    ],
    ids=str,
)
def test_an_honest_artifact_is_proven(model: str, options: dict[str, object], deep: Deep, compare: Compare) -> None:
    found = compare(deep(model, **options), model)
    assert [check.passed for check in found.checks] == [True], found.checks
    assert found.notes == ()


def test_a_second_definition_of_a_function_is_refused(deep: Deep) -> None:
    model = onnx.load(deep("vit") / "model.onnx")
    model.functions.append(model.functions[0])
    with pytest.raises(MalformedGraphError, match="is there 2 times"):
        onnx_model(model)


def test_names_and_order_do_not_count(deep: Deep, compare: Compare, tmp_path: Path) -> None:
    def disguise(model: onnx.ModelProto) -> None:
        nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in model.graph.node]
        names = {name for n in nodes for name in n.output} - {"logits"}
        for index, found in enumerate(nodes):
            found.name, found.doc_string = f"n{index}", "renamed"
            found.input[:] = [f"{name}_" if name in names else name for name in found.input]
            found.output[:] = [f"{name}_" if name in names else name for name in found.output]
        del model.graph.node[:], model.graph.value_info[:]
        model.graph.node.extend(sorted(nodes, key=lambda n: n.name))

    artifact = broken_onnx(deep("vit"), tmp_path / "disguised", disguise)
    calls = json.loads((artifact / MANIFEST_FILE).read_text())["attentions"]
    for call in calls:
        call |= {
            "inputs": [f"{x}_" if "/" in x and ".c" not in x else x for x in call["inputs"]],
            "output": call["output"] + "_",
        }
        call |= {"squarings": call["squarings"] + "_"}
    check = compare(signed(artifact, attentions=calls), "vit").checks[0]
    assert check.passed, check.detail
    check = compare(signed(artifact, attentions=calls[::-1]), "vit").checks[0]
    assert "manifest attentions" in check.detail


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
    options = VerifyOptions(batches=[1], quick=True)
    assert said in verify(claiming, options=options).certificate.failures()
    assert said in compare_artifacts(claiming, deep("vit"), options).certificate.failures()


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
        deep("vit"), tmp_path / "broken", lambda m: change_weight(m, f"{MLP}.expand/MatMul.weight", lambda w: w[::-1])
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
