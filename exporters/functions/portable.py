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


# Operators that return a number for NaN in some runtime (``targets.py`` says in which): element by element, with the
# number of inputs that count, and over several elements, with the operator that finds the largest of the same ones.
DROP_NAN = {"Relu": 1, "LeakyRelu": 1, "Elu": 1, "Selu": 1, "Celu": 1, "HardSigmoid": 1, "Sigmoid": 1, "Tanh": 1}
DROP_NAN |= {"Exp": 1, "Clip": 1, "Max": None, "Min": None}
DROP_NAN_OF_SEVERAL = {"ReduceMax": "ReduceMax", "ReduceMin": "ReduceMax", "ReduceLogSumExp": "ReduceMax"}
DROP_NAN_OF_SEVERAL |= {"MaxPool": "MaxPool", "GlobalMaxPool": "GlobalMaxPool"}


def keep_nan(model: ir.Model) -> None:
    """Make operators return NaN for NaN that do not in every runtime.

    Relu returns 0 in OpenVINO and TVM, and so hides that an attention before it returned NaN, out of its range.
    """
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    for node in [node for graph in graphs for node in graph.all_nodes()]:
        values = [x for x in node.inputs if x is not None and x.const_value is None]
        if node.domain or not values or (values[0].dtype is not None and not values[0].dtype.is_floating_point()):
            continue
        if node.op_type in DROP_NAN:
            for index, x in enumerate(values[: DROP_NAN[node.op_type]]):
                broken = ir.node("IsNaN", [x], name=f"{node.name}_{index}_IsNaN")
                _guard(node, [broken], x, f"{node.name}_{index}")
        elif node.op_type in DROP_NAN_OF_SEVERAL and values[0].dtype is not None:
            _guard_several(node, values[0])


def _guard_several(node: ir.Node, x: ir.Value) -> None:
    """NaN where there is one among the elements: the largest of numbers that are 1 for NaN and else 0 is 1."""
    nan = ir.node("Constant", [], {"value": ir.tensor(np.array(np.nan, x.dtype.numpy()))}, name=f"{node.name}_NaN")  # type: ignore[union-attr]
    half = ir.node("Constant", [], {"value": ir.tensor(np.array(0.5, np.float32))}, name=f"{node.name}_Half")
    broken = ir.node("IsNaN", [x], name=f"{node.name}_IsNaN")
    ones = ir.node("Cast", broken.outputs, {"to": ir.DataType.FLOAT}, name=f"{node.name}_Ones")
    kind = DROP_NAN_OF_SEVERAL[node.op_type]
    largest = ir.Node("", kind, [*ones.outputs, *node.inputs[1:]], node.attributes.values(), name=f"{node.name}_AnyNaN")
    some = ir.node("Greater", [*largest.outputs, *half.outputs], name=f"{node.name}_IsBroken")
    _guard(node, [nan, half, broken, ones, largest, some], nan.outputs[0], node.name or "")


def _guard(node: ir.Node, tests: Sequence[ir.Node], broken: ir.Value, name: str) -> None:
    """Put Where(test, broken, y) in the place of y; the last of ``tests`` makes the test."""
    y = node.outputs[0]
    kept = ir.node("Where", [tests[-1].outputs[0], broken, y], name=f"{name}_Where")
    for test in tests:
        test.outputs[0].name = test.name
    tests[-1].outputs[0].type = ir.TensorType(ir.DataType.BOOL)
    result = kept.outputs[0]
    result.name, result.type, result.shape = y.name, y.type, y.shape
    ir.convenience.replace_all_uses_with(y, result, replace_graph_outputs=True)
    kept.replace_input_with(2, y)
    y.name = f"{name}_{node.op_type}"
    assert node.graph is not None
    node.graph.insert_after(node, [*tests, kept])
