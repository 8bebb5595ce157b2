"""Every edit of an exported ONNX model or its manifest is named; new names and another order are not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from sabotage import before_output, broken_onnx, change_weight, clip, constant, drop_squaring, signed
from structures import Compare

from osa_runtime.artifact import MANIFEST_FILE
from osa_runtime.verification.structure.graph import MalformedGraphError
from osa_runtime.verification.structure.onnx_graph import onnx_model

Deep = Callable[..., Path]
Checkpoint = Callable[[str], Path]
MLP = "stack.blocks.1.mlp"


def node(model: onnx.ModelProto, operator: str, part: str = "") -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.op_type == operator and part in n.name)


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
