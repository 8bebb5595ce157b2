"""Whatever order and numbers the tracer gave to variables, a function comes out the same, and computes the same."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from osa_runtime.exporters.function_order import put_in_order

THEN = {"high": ("Add", "x", "y"), "low": ("Sub", "x", "y"), "kept": ("Identity", "y")}
OTHERWISE = {"high": ("Identity", "x"), "low": ("Mul", "x", "y"), "kept": ("Identity", "y")}
STEP = {"a": ("Add", "a", "b"), "b": ("Sub", "a", "c"), "c": ("Mul", "b", "x")}


def info(name: str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, [])


def branch(values: dict[str, tuple[str, ...]], order: tuple[str, ...], tag: str) -> onnx.GraphProto:
    """Computed values first, as in the source, then the copies of outer ones in this order, as onnxscript has it."""
    copies = [name for name in order if values[name][0] == "Identity"]
    names = [*(name for name in values if name not in copies), *copies]
    nodes = [helper.make_node(values[name][0], values[name][1:], [name + tag]) for name in names]
    return helper.make_graph(nodes, f"traced{tag}", [], [info(name + tag) for name in order])


def traced(chosen: tuple[str, ...], carried: tuple[str, ...], number: int) -> onnx.FunctionProto:
    """If x > y a choice of three values, then two trips that change three of them, in these orders."""
    tag = f"_{number}"
    both = {"then_branch": branch(THEN, chosen, tag), "else_branch": branch(OTHERWISE, chosen, f"_{number + 1}")}
    inner = {name: f"{name}_{number + 5}" for name in STEP} | {"x": "x"}
    body = [helper.make_node(STEP[n][0], [inner[i] for i in STEP[n][1:]], [n + tag]) for n in STEP]
    body.insert(0, helper.make_node("Identity", ["go_1"], ["go"]))
    given = [info("i", TensorProto.INT64), info("go_1", TensorProto.BOOL), *(info(inner[n]) for n in carried)]
    step = helper.make_graph(
        body, f"traced{tag}", given, [info("go", TensorProto.BOOL), *(info(n + tag) for n in carried)]
    )
    starts = dict(zip(STEP, (f"high{tag}9", f"low{tag}9", f"kept{tag}9"), strict=True))
    nodes = [
        helper.make_node("Greater", ["x", "y"], ["more"]),
        helper.make_node("If", ["more"], [f"{name}{tag}9" for name in chosen], **both),
        helper.make_node("Constant", [], ["trips"], value=helper.make_tensor("trips", TensorProto.INT64, [], [2])),
        helper.make_node("Loop", ["trips", "", *(starts[n] for n in carried)], [f"{n}_77" for n in carried], body=step),
        helper.make_node("Sub", ["a_77", "b_77"], [f"x_{number}"]),
        helper.make_node("Add", [f"x_{number}", "c_77"], [f"x_{number + 1}"]),
    ]
    nodes[3].input[1] = "more_2"
    nodes.insert(2, helper.make_node("Equal", ["more", "more"], ["more_2"]))
    return helper.make_function("test", "F", ["x", "y"], [f"x_{number + 1}"], nodes, [helper.make_opsetid("", 18)])


def answers(function: onnx.FunctionProto) -> list[Any]:
    node = helper.make_node("F", ["x", "y"], ["out"], domain="test")
    graph = helper.make_graph([node], "g", [info("x"), info("y")], [info("out")])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("test", 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model)
    run = ReferenceEvaluator(model).run
    return [run(None, {"x": np.float32(x), "y": np.float32(y)})[0] for x, y in ((3, 5), (7, 2))]


def test_orders_and_numbers_do_not_show() -> None:
    found = set()
    expected = answers(traced(("high", "low", "kept"), ("a", "b", "c"), 1))
    for index, (chosen, carried) in enumerate(zip(permutations(THEN), permutations(STEP), strict=True)):
        for carried_too in (carried, carried[::-1]):
            function = traced(chosen, carried_too, 1 + 7 * index)
            put_in_order(function)
            found.add(function.SerializeToString(deterministic=True))
            assert answers(function) == expected
    assert len(found) == 1


def test_names_are_those_of_the_source_and_are_used_once() -> None:
    function = traced(("low", "high", "kept"), ("c", "a", "b"), 30)
    put_in_order(function)
    made = [name for node in function.node for name in node.output]
    assert made == ["more", "high_2", "kept_2", "low_2", "more_1", "trips", "a_2", "b_2", "c_2", "x_1", "x_2"]
    assert list(function.output) == ["x_2"], "x alone is the input"
    assert [node.name for node in function.node][:2] == ["Greater_0", "If_1"]
    branches = {attribute.g.name: [node.name for node in attribute.g.node] for attribute in function.node[1].attribute}
    assert branches == {
        "then_branch": ["Add_0", "Sub_1", "Identity_2"],
        "else_branch": ["Mul_0", "Identity_1", "Identity_2"],
    }


def test_two_variables_of_one_name_have_no_order() -> None:
    function = traced(("high", "low", "kept"), ("a", "b", "c"), 1)
    function.node[1].output[0] = "low_8"
    with pytest.raises(AssertionError, match="two variables have the same name"):
        put_in_order(function)


def test_scan_outputs_have_no_order() -> None:
    function = traced(("high", "low", "kept"), ("a", "b", "c"), 1)
    loop = next(node for node in function.node if node.op_type == "Loop")
    loop.output.append("all_of_them")
    with pytest.raises(AssertionError, match="scan outputs"):
        put_in_order(function)
