"""The inputs, outputs and weights of an ONNX graph, in the words of the manifest."""

from __future__ import annotations

import math

import onnx

from osa_runtime.artifact import TensorSpec

LARGEST_SINGLE_FILE = 2**31 - 2**20  # protobuf ends at 2 GiB; leave room for the graph


def input_specs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    # Up to IR version 3 every weight is listed among the inputs too.
    weights = {tensor.name for tensor in model.graph.initializer}
    return tuple(_spec(value) for value in model.graph.input if value.name not in weights)


def output_specs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    return tuple(_spec(value) for value in model.graph.output)


def count_parameters(model: onnx.ModelProto) -> int:
    """Elements of all floating-point weights; whole numbers in a graph are shapes and indices."""
    return sum(math.prod(t.dims) for t in model.graph.initializer if "float" in _dtype(t.data_type))


def weight_bytes(model: onnx.ModelProto) -> int:
    sizes = (onnx.helper.tensor_dtype_to_np_dtype(t.data_type).itemsize for t in model.graph.initializer)
    return sum(math.prod(t.dims) * size for t, size in zip(model.graph.initializer, sizes, strict=True))


def axes(tensor: onnx.TypeProto.Tensor) -> tuple[int | str, ...]:
    """A number for a fixed axis, a name for a dynamic one, ? where nothing is known."""
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return TensorSpec(value.name, (kind or "unknown").removesuffix("_type"), ())
    return TensorSpec(value.name, _dtype(value.type.tensor_type.elem_type), axes(value.type.tensor_type))


def _dtype(element: int) -> str:
    """As numpy and the manifest write it: float32, not FLOAT."""
    name = onnx.TensorProto.DataType.Name(element).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)
