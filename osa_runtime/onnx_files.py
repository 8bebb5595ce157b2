"""ONNX files: reading them with errors that name the file, and the types and axes of their tensors."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from osa_runtime.artifact import TensorSpec
from osa_runtime.errors import ArtifactError


def read_onnx(path: Path) -> onnx.ModelProto:
    """The model without the weights that are kept outside it."""
    try:
        model = onnx.load(path, load_external_data=False, format="protobuf")
    except DecodeError as error:
        raise ArtifactError(f"{path} is not an ONNX model, or only a part of one: it cannot be decoded.") from error
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not model.ir_version or not model.opset_import or not model.graph.output:
        raise ArtifactError(f"{path} is not an ONNX model, or only a part of one: it has no graph or no opset.")
    return model


@contextlib.contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """Convert the errors of onnx's C++ code, which raises its own RuntimeErrors, into ours."""
    try:
        yield
    except (RuntimeError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = " ".join(str(error).split())
        raise ArtifactError(f"{path} is not a valid ONNX model: {reason}") from error


def external_files(model: onnx.ModelProto, path: Path) -> tuple[Path, ...]:
    """The files next to the model that hold its weights."""
    names = {
        entry.value
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    files = tuple(path.parent / name for name in sorted(names))
    for file in files:
        if not file.is_file():
            raise ArtifactError(f"{file} does not exist, but {path.name} keeps weights there; copy both files.")
    return files


LARGEST_SINGLE_FILE = 2**31 - 2**20  # protobuf's limit is 2 GiB; leave room for the graph


def input_specs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    # Up to IR version 3 every weight is listed among the inputs too.
    weights = {tensor.name for tensor in model.graph.initializer}
    return tuple(_spec(value) for value in model.graph.input if value.name not in weights)


def output_specs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    return tuple(_spec(value) for value in model.graph.output)


def count_parameters(model: onnx.ModelProto) -> int:
    """The number of elements of all floating-point weights; whole numbers in a graph are shapes and indices."""
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
    """The type as numpy and the manifest write it: float32, not FLOAT."""
    name = onnx.TensorProto.DataType.Name(element).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """The values that a node reads, also inside its branches and loops; names made by a body itself do no harm."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            made = {name for inner in graph.node for name in inner.output} | {value.name for value in graph.input}
            for inner in graph.node:
                yield from (name for name in reads(inner) if name not in made)
            yield from (value.name for value in graph.output if value.name not in made)
