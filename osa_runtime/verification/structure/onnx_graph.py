"""An ONNX model as a graph to compare. Fields unknown here count as properties, so that none is missed."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx.numpy_helper import to_array

from osa_runtime.external_data import external_files
from osa_runtime.onnx_files import input_specs, output_specs, readable_errors
from osa_runtime.verification.structure.graph import (
    Graph,
    MalformedGraphError,
    Model,
    Node,
    Operator,
    Property,
    StoredTensor,
    array_tensor,
    digest,
    property_of,
)

NAMING = ("name", "doc_string", "metadata_props")  # metadata of the parts of a model is for tools alone
GRAPH_PARTS = ("node", "initializer", "sparse_initializer", "input", "output", "value_info")
MODEL_PARTS = ("graph", "functions", "opset_import", "producer_name", "producer_version", "doc_string", "ir_version")


def onnx_model(model: onnx.ModelProto) -> Model:
    """Convert the model; raise MalformedGraphError if something is defined twice."""
    opsets = _opsets(model.opset_import)
    functions = [_function(function) for function in model.functions]
    _refuse_twice("the function", [".".join(filter(None, key)) for key, _ in functions])
    inputs, outputs = ([_own(v, *NAMING[1:]) for v in values] for values in (model.graph.input, model.graph.output))
    others = {field.name: str(value)[:80] for field, value in model.ListFields() if field.name not in MODEL_PARTS}
    head = {
        "the IR version": property_of(model.ir_version),
        "operator sets": property_of(dict(sorted(opsets.items()))),
        "inputs of the graph": Property(digest(inputs), lambda: _listed(input_specs(model))),
        "outputs of the graph": Property(digest(outputs), lambda: _listed(output_specs(model))),
        "other fields of the model": Property(digest(_own(model, *MODEL_PARTS)), lambda: str(others or "none")),
    }
    return Model(_graph(model.graph, opsets), dict(functions), head)


def read_onnx_model(path: Path) -> Model:
    external_files(path)  # raises ArtifactError for tensors in unsafe external files
    with readable_errors(path):
        try:
            return onnx_model(onnx.load(path))
        except (onnx.checker.ValidationError, OSError, ValueError, TypeError) as error:
            raise MalformedGraphError(f"{path.name}: {error}") from error


def _function(function: onnx.FunctionProto) -> tuple[Operator, Graph]:
    opsets = _opsets(function.opset_import)
    rest = _own(function, *NAMING, "domain", "overload", "input", "output", "node", "opset_import")
    graph = Graph(
        inputs=dict.fromkeys(function.input, b""),
        tensors={},
        nodes=tuple(_node(node, opsets) for node in function.node),
        outputs=tuple(function.output),
        rest=digest(rest, sorted(opsets.items())),
        is_function=True,
    )
    domain = "" if function.domain == "ai.onnx" else function.domain
    return (domain, *filter(None, [function.overload]), function.name), graph


def _graph(graph: onnx.GraphProto, opsets: dict[str, int]) -> Graph:
    _refuse_twice("the input", [value.name for value in graph.input])
    _refuse_twice("the weight", [tensor.name for tensor in graph.initializer])
    for sparse in graph.sparse_initializer:
        raise MalformedGraphError(f"the weight {sparse.values.name!r} is sparse, which no export writes")
    return Graph(
        inputs={value.name: _own(value, *NAMING) for value in graph.input},
        tensors={tensor.name: _tensor(tensor) for tensor in graph.initializer},
        nodes=tuple(_node(node, opsets) for node in graph.node),
        outputs=tuple(value.name for value in graph.output),
        claims={value.name: _own(value, *NAMING) for value in (*graph.value_info, *graph.output)},
        rest=_own(graph, *NAMING, *GRAPH_PARTS),
    )


def _node(node: onnx.NodeProto, opsets: dict[str, int]) -> Node:
    domain = "" if node.domain == "ai.onnx" else node.domain
    if domain not in opsets:
        raise MalformedGraphError(f"{node.op_type} belongs to the domain {domain!r}, which is not imported")
    _refuse_twice("the attribute", [attribute.name for attribute in node.attribute])
    bodies = {a.name: _graph(a.g, opsets) for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}
    properties = {a.name: _attribute(a) for a in node.attribute if a.name not in bodies}
    rest = _own(node, *NAMING, "input", "output", "attribute", "op_type", "domain", "overload")
    properties["operator set"] = property_of(opsets[domain])
    properties["other fields"] = Property(digest(rest), lambda: repr(rest))
    operator = (domain, *filter(None, [node.overload]), node.op_type)
    return Node(node.name, operator, _trimmed(node.input), _trimmed(node.output), properties, bodies)


def _attribute(attribute: onnx.AttributeProto) -> Property:
    if attribute.type == onnx.AttributeProto.TENSOR and not attribute.ref_attr_name:
        tensor = _tensor(attribute.t)
        return Property(tensor.digest, lambda: str(tensor.array().tolist())[:80])
    return Property(digest(_own(attribute, "doc_string")), lambda: _text(attribute))


def _text(attribute: onnx.AttributeProto) -> str:
    if attribute.ref_attr_name:
        return f"the function's {attribute.ref_attr_name}"
    return str(onnx.helper.get_attribute_value(attribute))[:80]


def _tensor(tensor: onnx.TensorProto) -> StoredTensor:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise MalformedGraphError(f"the constant {tensor.name!r} is kept outside the file")
    if tensor.data_type == onnx.TensorProto.STRING:
        return StoredTensor(digest(list(tensor.dims), list(tensor.string_data)), lambda: to_array(tensor))
    array = to_array(tensor)
    known = array_tensor(array)
    return StoredTensor(digest(tensor.data_type, known.digest), lambda: array)


def _opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    pairs = [("" if entry.domain == "ai.onnx" else entry.domain, entry.version) for entry in imports]
    _refuse_twice("the operator set", [domain for domain, _ in pairs])
    return dict(pairs)


def _own(message: Any, *without: str) -> bytes:
    """The content of a message without these fields."""
    rest = copy.deepcopy(message)
    for name in without:
        rest.ClearField(name)
    serialized: bytes = rest.SerializeToString(deterministic=True)
    return serialized


def _trimmed(names: Sequence[str]) -> tuple[str, ...]:
    """The names without the empty ones at the end, which have no meaning."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return tuple(kept)


def _refuse_twice(what: str, names: Sequence[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise MalformedGraphError(f"{what} {name!r} is there {times} times")


def _listed(specs: Iterable[object]) -> str:
    return ", ".join(map(str, specs))
