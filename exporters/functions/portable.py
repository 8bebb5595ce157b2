"""Spellings that more runtimes read as they are meant: constants as tensors, float32 throughout, NaN that stays NaN."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

TYPES = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


def constants_as_tensors(nodes: Iterable[onnx.NodeProto]) -> None:
    """Spell every constant as a tensor: onnxslim, for one, reads the short spellings in another type."""
    for node in nodes:
        for attribute in node.attribute:
            constants_as_tensors(attribute.g.node)
            if node.op_type == "Constant" and attribute.name in TYPES:
                value = np.asarray(helper.get_attribute_value(attribute), TYPES[attribute.name])
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))


def in_float32(functions: Iterable[onnx.FunctionProto]) -> None:
    """Take float64 out of functions whose only floating-point types are float32 and float64."""
    for function in functions:
        function.name = _renamed(function.name)
        _narrow(function.node)


def _narrow(nodes: Sequence[onnx.NodeProto]) -> None:
    whole = {node.output[0] for node in nodes if node.op_type == "Constant" and _is_whole(node)}
    for node in nodes:
        node.op_type = _renamed(node.op_type)
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.t.data_type == TensorProto.DOUBLE:
                value = numpy_helper.to_array(attribute.t).astype(np.float32)
                attribute.t.CopyFrom(numpy_helper.from_array(value, attribute.t.name))
            if attribute.name == "to" and attribute.i == TensorProto.DOUBLE:
                attribute.i = TensorProto.FLOAT
        if node.op_type == "CastLike":
            # whole numbers in the source are sizes, everything else is to be computed with
            node.op_type, kind = "Cast", TensorProto.INT64 if node.input[0] in whole else TensorProto.FLOAT
            del node.input[1:]
            node.attribute.append(helper.make_attribute("to", kind))


def _is_whole(constant: onnx.NodeProto) -> bool:
    return any(a.name.startswith("value_int") or a.t.data_type == TensorProto.INT64 for a in constant.attribute)


def _renamed(name: str) -> str:
    return name.replace("Float64", "Float32")


DROP_NAN = {"Relu": 1, "LeakyRelu": 1, "Clip": 1, "Exp": 1, "Max": None, "Min": None}  # the inputs that count


def keep_nan(model: ir.Model) -> None:
    """Make operators return NaN for NaN that do not in every runtime.

    Relu returns 0 in OpenVINO and TVM, and so hides that an attention before it returned NaN, out of its range.
    """
    for node in list(model.graph):
        if node.op_type in DROP_NAN and node.domain == "":
            for index, x in enumerate(node.inputs[: DROP_NAN[node.op_type]]):
                if x is not None and x.const_value is None:
                    _guard(model.graph, node, x, f"{node.name}_{index}")


def _guard(graph: ir.Graph, node: ir.Node, x: ir.Value, name: str) -> None:
    """Put Where(IsNaN(x), x, y) in the place of y."""
    y = node.outputs[0]
    broken = ir.node("IsNaN", [x], name=f"{name}_IsNaN")
    kept = ir.node("Where", [broken.outputs[0], x, y], name=f"{name}_Where")
    test, result = broken.outputs[0], kept.outputs[0]
    test.name, test.type, test.shape = broken.name, ir.TensorType(ir.DataType.BOOL), x.shape
    result.name, result.type, result.shape = y.name, y.type, y.shape
    ir.convenience.replace_all_uses_with(y, result, replace_graph_outputs=True)
    kept.replace_input_with(2, y)
    y.name = f"{name}_{node.op_type}"
    graph.insert_after(node, [broken, kept])
