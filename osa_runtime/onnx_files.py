"""ONNX files: reading them with errors that name the file, and the types and axes of their tensors."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from osa_runtime.errors import ArtifactError
from osa_runtime.external_data import external_files
from osa_runtime.interface import TensorSpec


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


def weight_files(path: Path) -> tuple[Path, ...]:
    """The files next to the model that hold its weights."""
    files = tuple(path.parent / name for name in sorted(external_files(path)))
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


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The branches of an If, the body of a Loop or a Scan."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def with_inner(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, and those in their branches and loops."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from with_inner(body.node)


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """The values that a node reads, also inside its branches and loops, except those that a body makes itself."""
    yield from (name for name in node.input if name)
    for graph in bodies(node):
        made = {name for inner in graph.node for name in inner.output}
        made |= {value.name for value in (*graph.input, *graph.initializer)}
        for inner in graph.node:
            yield from (name for name in reads(inner) if name not in made)
        yield from (value.name for value in graph.output if value.name not in made)


def renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A copy that reads other values, also inside its branches and loops."""
    result = copy.deepcopy(node)
    result.input[:] = [names.get(name, name) for name in node.input]
    for graph in bodies(result):
        inner = [renamed(part, names) for part in graph.node]
        del graph.node[:]
        graph.node.extend(inner)
        for value in graph.output:
            value.name = names.get(value.name, value.name)
    return result


def free_name(name: str, taken: set[str]) -> str:
    """The name, numbered from 2 on if it is taken; it is added to ``taken``."""
    free = next(free for i in count(1) if (free := name if i == 1 else f"{name}_{i}") not in taken)
    taken.add(free)
    return free


def makers(nodes: Sequence[onnx.NodeProto]) -> dict[str, int]:
    """The index of the node that makes each value."""
    return {name: index for index, node in enumerate(nodes) for name in node.output if name}


def between(
    nodes: Sequence[onnx.NodeProto], maker: Mapping[str, int], known: Collection[str], wanted: Iterable[str]
) -> set[int]:
    """The nodes that are needed for ``wanted`` when ``known`` is given."""
    found: set[int] = set()
    waiting = [name for name in wanted if name not in known]
    while waiting:
        index = maker.get(waiting.pop())
        if index is not None and index not in found:
            found.add(index)
            waiting += [name for name in reads(nodes[index]) if name not in known]
    return found
