"""Spellings of the functions that more runtimes read: constants as tensors, and float32 throughout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx
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
