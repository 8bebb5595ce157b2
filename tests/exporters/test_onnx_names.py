"""Names in a graph and in functions: after modules and operators, each one once, and nothing of the tracer left."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osa_runtime.exporters.onnx_names import SCOPES, module_path, name_function, name_graph, relative
from osa_runtime.onnx_functions import joined


def node(operator: str, path: str, inputs: Sequence[ir.Value], outputs: int = 1, domain: str = "") -> ir.Node:
    made = ir.Node(domain, operator, inputs, num_outputs=outputs, doc_string="of the tracer")
    made.metadata_props[SCOPES] = repr(["", path, operator.lower()])
    for value in made.outputs:
        value.metadata_props["seen in"] = "/home/somebody/model.py"
    return made


def weight(name: str) -> ir.Value:
    return ir.Value(name=name, const_value=ir.tensor([1.0], name=name))


def model_of(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], weights: Sequence[ir.Value] = ()) -> ir.Model:
    x = ir.Value(name="x")
    nodes[0].replace_input_with(0, x)
    opsets = {"": 18, "ai.osa": 1}
    graph = ir.Graph([x], outputs, nodes=nodes, initializers=weights, name="g", opset_imports=opsets)
    graph.metadata_props["made by"] = "the tracer"
    return ir.Model(graph, ir_version=10, metadata_props={"made by": "the tracer"})


@pytest.mark.parametrize(
    ("scopes", "path"),
    [
        (["", "stack", "stack.blocks.0", "matmul"], "stack.blocks.0"),
        (["", "stack", "_guards", "matmul"], "stack"),
        (["stack.blocks.0"], ""),
        (["", "add"], ""),
        ([], ""),
    ],
)
def test_the_innermost_module_counts_and_not_the_operation(scopes: list[str], path: str) -> None:
    assert module_path(ir.Node("", "Add", [], metadata_props={SCOPES: repr(scopes)})) == path
    assert module_path(ir.Node("", "Add", [])) == ""


PATHS = st.lists(st.sampled_from(["a", "b", "10", "1"]), min_size=1, max_size=3).map(".".join)


@given(PATHS, PATHS, st.sampled_from([".weight", "/MatMul", ".1/Add"]))
def test_names_relative_to_a_module_are_undone_by_joining(path: str, other: str, end: str) -> None:
    assert joined(path, relative(path + end, path)) == path + end
    assert joined(f"{other}.x", relative(path + end, path)) == f"{other}.x{end}"
    if not f"{other}{end}".startswith((f"{path}.", f"{path}/")):  # such as blocks.10 in blocks.1
        assert relative(other + end, path) == other + end
    assert relative(path + end, "") == path + end


def test_nodes_and_values_have_the_names_of_their_modules() -> None:
    first = node("MatMul", "head", [ir.Value(), weight("val_1")])
    again = node("MatMul", "head", [first.outputs[0], weight("head.weight")])
    parts = node("Split", "", [again.outputs[0]], outputs=2)
    counted = node("Attention", "block", [parts.outputs[0]], outputs=2, domain="ai.osa")
    last = node("Add", "block", [counted.outputs[0], weight("val_2")])
    weights = [first.inputs[1], again.inputs[1], last.inputs[1], weight("val_9")]
    model = model_of([first, again, parts, counted, last], [last.outputs[0], parts.outputs[1]], weights)
    name_graph(model, ("logits", "rest"))
    assert [one.name for one in model.graph] == [
        "head/MatMul",
        "head/MatMul_2",
        "Split",
        "block/Attention",
        "block/Add",
    ]
    values = [[value.name for value in one.outputs] for one in model.graph]
    squarings = ["block/Attention", "block/Attention.squarings"]
    assert values == [["head/MatMul"], ["head/MatMul_2"], ["Split", "rest"], squarings, ["logits"]]
    found = {name: value.name for name, value in model.graph.initializers.items()}
    assert list(found) == ["head.weight", "val_9", "head/MatMul.weight", "block/Add.constant_1"]
    assert all(name == own for name, own in found.items())
    assert model.graph.initializers["head/MatMul.weight"] is first.inputs[1]
    everything = [model, model.graph, *model.graph.all_nodes(), *(v for n in model.graph for v in n.outputs)]
    assert not any(one.metadata_props for one in everything)
    assert not any(one.doc_string for one in model.graph)


def test_outputs_need_a_name_each() -> None:
    one = node("Relu", "", [ir.Value()])
    with pytest.raises(ValueError, match="zip"):
        name_graph(model_of([one], one.outputs), ("a", "b"))


def test_a_second_call_and_a_second_body_do_not_share_a_name() -> None:
    nodes = [node(operator, "", [ir.Value()]) for operator in ("F", "F_2", "F", "F_2")]
    for before, after in pairwise(nodes):
        after.replace_input_with(0, before.outputs[0])
    name_graph(model_of(nodes, nodes[-1].outputs), ("out",))
    names = [one.name for one in nodes]
    assert names[:2] == ["F", "F_2"]
    assert len(set(names)) == 4


def test_the_inputs_of_a_function_are_named_after_their_readers_unless_they_have_names() -> None:
    x, bias, factor, same = ir.Value(name="x"), ir.Value(name="out"), ir.Value(), ir.Value(name="x")
    product = node("MatMul", "stack.mlp.first", [x, factor])
    summed = node("Add", "stack.mlp", [product.outputs[0], bias])
    last = node("Mul", "other", [summed.outputs[0], same])
    last.outputs[0].name = "out"
    graph = ir.Graph([x, bias, factor, same], last.outputs, nodes=[product, summed, last], opset_imports={"": 18})
    function = ir.Function("own", "MLP", graph=graph, attributes=())
    model = ir.Model(ir.Graph([], [], nodes=[]), ir_version=10, functions=[function])
    name_function(model, function, "stack.mlp", {factor})
    assert [one.name for one in function] == ["first/MatMul", "/Add", "other/Mul"]
    assert [value.name for value in function.inputs] == ["x", "out_2", "first/MatMul.weight", "x_2"]
    assert [value.name for value in function.outputs] == ["out"]
