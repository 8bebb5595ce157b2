"""Small ONNX models for tests: with functions that call each other, with If and Loop, deep, and of one node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DOMAIN = "test.functions"


def value(
    name: str, shape: Sequence[int | str] = ("batch", 4), element: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def model(graph: onnx.GraphProto, functions: Sequence[onnx.FunctionProto] = (), opset: int = 18) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(
        graph,
        functions=functions,
        opset_imports=opsets if functions else opsets[:1],
        ir_version=8,
        producer_name="hand",
    )


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.full(shape, 0.5, np.float32), name)


def function(name: str, nodes: Sequence[onnx.NodeProto], doc: str) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    result = helper.make_function(DOMAIN, name, ["x"], ["y"], nodes, imports)
    result.doc_string = doc
    return result


def with_functions() -> onnx.ModelProto:
    """Two calls of Twice, each of which calls Once twice; one weight of 4×4."""
    once = function("Once", [helper.make_node("Relu", ["x"], ["y"])], "max(x, 0)\n\nmore")
    calls = [
        helper.make_node("Once", ["x"], ["h"], domain=DOMAIN),
        helper.make_node("Once", ["h"], ["y"], domain=DOMAIN),
    ]
    nodes = [
        helper.make_node("Twice", ["x"], ["a"], name="first/Twice", domain=DOMAIN),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="middle/MatMul"),
        helper.make_node("Twice", ["b"], ["y"], name="last/Twice", domain=DOMAIN),
    ]
    graph = helper.make_graph(nodes, "g", [value("x")], [value("y")], [weight("w", 4, 4)])
    return model(graph, [once, function("Twice", calls, "Once, twice")])


def with_control_flow() -> onnx.ModelProto:
    """If (sum > 0) y = three times e ← e + w in a Loop, else y = x; the bodies read x and w from outside."""
    body = helper.make_graph(
        [helper.make_node("Add", ["e", "w"], ["e_out"]), helper.make_node("Identity", ["go"], ["go_out"])],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("e")],
        [value("go_out", [], TensorProto.BOOL), value("e_out")],
    )
    loop = helper.make_node("Loop", ["trips", "", "x"], ["then_out"], body=body)
    then = helper.make_graph([loop], "then", [], [value("then_out")])
    otherwise = helper.make_graph([helper.make_node("Identity", ["x"], ["else_out"])], "else", [], [value("else_out")])
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], name="choice/If", then_branch=then, else_branch=otherwise),
    ]
    constants = [numpy_helper.from_array(np.array(3, np.int64), "trips"), weight("w", 4), weight("zero")]
    return model(helper.make_graph(nodes, "g", [value("x")], [value("y")], constants))


def deep(depth: int, *, residual: bool = False) -> onnx.ModelProto:
    """Blocks of MatMul, Add, Relu, Mul (and a skip connection), a Mul at the start and a ReduceMean at the end."""
    nodes, last = [helper.make_node("Mul", ["x", "bias"], ["h"], name="embed/Mul")], "h"
    for i in range(depth):
        path, start = f"stack.blocks.{i}", last
        steps = [
            ("MatMul", "w", "mlp/MatMul"),
            ("Add", "bias", "mlp/Add"),
            ("Relu", "", "Relu"),
            ("Mul", "bias", "Mul"),
        ]
        steps += [("Add", start, "Add")] if residual else []
        for operator, other, name in steps:
            separator = "." if "/" in name else "/"
            output = f"{path}_{name}"
            inputs = [last, other] if other else [last]
            nodes.append(helper.make_node(operator, inputs, [output], name=f"{path}{separator}{name}"))
            last = output
    nodes.append(helper.make_node("ReduceMean", [last], ["y"], name="head/ReduceMean", keepdims=0))
    weights = [weight("w", 4, 4), weight("bias", 4)]
    return model(helper.make_graph(nodes, "g", [value("x")], [value("y", [])], weights))


def one_node(operator: str, element: int, opset: int = 18, inputs: int = 1) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(inputs)]
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["y"], name="it")],
        "g",
        [value(name, [4, 4], element) for name in names],
        [helper.make_tensor_value_info("y", element, None)],
    )
    return model(graph, opset=opset)
