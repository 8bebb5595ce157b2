"""Models of one ai.osa.OrthogonalAttention node, with the functions that an export writes."""

from __future__ import annotations

import functools

import onnx
from onnx import TensorProto, helper

from osa_runtime.exporters import FunctionChoice, build_functions
from osa_runtime.exporters.functions.flat import flat_functions

functions_of = functools.cache(build_functions)


def attention_model(choice: FunctionChoice, opset: int = 18, dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    def info(name: str, kind: int, *axes: object) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, axes)

    inputs = [info(name, dtype, "b", "h", "n", "e" if name == "v" else "d") for name in ("q", "k", "v")]
    inputs.append(info("scale", dtype, "h"))
    if choice.masked:
        inputs.append(info("mask", TensorProto.BOOL, "b", 1, "n"))
    node = helper.make_node("OrthogonalAttention", [i.name for i in inputs], ["y"], name="attention", domain="ai.osa")
    graph = helper.make_graph([node], "test", inputs, [info("y", dtype, "b", "h", "n", "e")])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.osa", 1)]
    return helper.make_model(graph, functions=flat_functions(choice, opset), opset_imports=opsets, ir_version=10)
