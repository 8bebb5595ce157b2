"""A file of torch.export as a graph to compare. Fields unknown here count as properties, too."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from osa_runtime.verification.structure.graph import (
    Array,
    Graph,
    MalformedGraphError,
    Model,
    Node,
    Property,
    StoredTensor,
    digest,
    property_of,
    property_of_content,
    read_entries,
)

PROGRAM = "models/model.json"
CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
NOT_COMPARED = (".data/serialization_id", "data/sample_inputs/model.pt")
# The numbers of torch's serialisation; other types are compared as bytes.
DTYPES = {1: "u1", 2: "i1", 3: "i2", 4: "i4", 5: "i8", 6: "f2", 7: "f4", 8: "f8", 12: "?"}


def read_pt2(path: Path) -> Model:
    entries = read_entries(path)
    try:
        return _model(entries)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise MalformedGraphError(f"{path.name} is not as torch.export writes it: {error!r}") from error


def _model(entries: Mapping[str, bytes]) -> Model:
    program = json.loads(entries[PROGRAM])
    module = program.pop("graph_module")
    content = module.pop("graph")
    program.pop("torch_version")
    signature = module.pop("signature")
    weights, paths = _weights(entries)
    tensors, inputs, head = {}, {}, {}
    names: dict[str, str] = {}
    for place, (argument, spec) in enumerate(_pairs(content["inputs"], signature.pop("input_specs"))):
        said, (graph_name,) = next(iter(spec.values())), list(_names(argument))
        key = next((said[k] for k in ("parameter_name", "buffer_name", "tensor_constant_name") if k in said), None)
        head[f"input {place}"] = property_of(_without_names(spec))
        if key is None:
            # Types and shapes of the inputs are checked when a program runs, those of other values never.
            inputs[graph_name] = digest(json.dumps(content["tensor_values"].get(graph_name), sort_keys=True))
        else:
            names[graph_name] = key
            tensors[key] = weights[key]
    outputs = _pairs(content["outputs"], signature.pop("output_specs"))
    head |= {f"output {i}": property_of(_without_names(spec)) for i, (_, spec) in enumerate(outputs)}
    for level, fields in (("program", program), ("module", module), ("signature", signature)):
        head |= {f"{level}: {name}": property_of(value) for name, value in fields.items()}
    head |= {
        f"the unused weight {name}": Property(tensor.digest, lambda: "there")
        for name, tensor in weights.items()
        if name not in tensors
    }
    head |= {
        f"the entry {name}": property_of_content(content)
        for name, content in entries.items()
        if name not in {PROGRAM, *CONFIGS, *NOT_COMPARED, *paths}
    }
    return Model(_graph(content, inputs, tensors, names), head=head)


def _pairs(arguments: Sequence[Any], specs: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The entries of the graph and of the signature for each input or output, which must name the same values."""
    pairs = list(zip(arguments, specs, strict=True))
    if any([*_names(argument)] != [*_names(spec)] for argument, spec in pairs):
        raise ValueError("the signature names other values than the graph")
    return pairs


def _weights(entries: Mapping[str, bytes]) -> tuple[dict[str, StoredTensor], set[str]]:
    """The weights by their names in the module, from the entries that hold them."""
    found: dict[str, StoredTensor] = {}
    paths = set()
    for config in CONFIGS:
        content = json.loads(entries[config])
        if list(content) != ["config"] or found.keys() & content["config"].keys():
            raise ValueError(f"{config} has other fields than weights, or weights that are elsewhere, too")
        for name, said in content["config"].items():
            path = f"{config.rpartition('/')[0]}/{said['path_name']}"
            paths.add(path)
            found[name] = _weight(entries[path], said)
    return found, paths


def _weight(content: bytes, said: Mapping[str, Any]) -> StoredTensor:
    if not re.fullmatch(r"\w+", said["path_name"]):
        raise ValueError(f"{said['path_name']} is not the name of an entry")
    rest = {key: value for key, value in said.items() if key != "path_name"}
    return StoredTensor(
        digest(json.dumps(rest, sort_keys=True), content), partial(_array, content, said["tensor_meta"])
    )


def _array(content: bytes, meta: Mapping[str, Any] | None) -> Array:
    """The array, or its bytes if the description in the archive does not fit them."""
    if meta is None:
        return np.frombuffer(content, "u1")
    dtype = np.dtype(DTYPES.get(meta["dtype"], "u1"))
    sizes = [size.get("as_int", -1) for size in meta["sizes"]]
    fits = min(sizes, default=0) >= 0 and math.prod(sizes) * dtype.itemsize == len(content)
    return np.frombuffer(content, dtype).reshape(sizes) if fits else np.frombuffer(content, "u1")


def _graph(
    content: Mapping[str, Any],
    inputs: Mapping[str, bytes],
    tensors: Mapping[str, StoredTensor],
    names: Mapping[str, str],
) -> Graph:
    values = {key: value for key, value in content.items() if key.endswith("_values")}
    rest = {key: value for key, value in content.items() if key not in {*values, "inputs", "outputs", "nodes"}}
    outputs = [name for argument in content["outputs"] for name in _names(argument)]
    literal = [_without_names(argument) for argument in content["outputs"]]
    return Graph(
        inputs=inputs,
        tensors=tensors,
        nodes=tuple(_nodes(content["nodes"], names)),
        outputs=tuple(names.get(name, name) for name in outputs),
        rest=digest(json.dumps([rest, literal], sort_keys=True)),
        is_function=True,
    )


def _nodes(nodes: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> Iterator[Node]:
    """The nodes, each with an input from the last in-place change: the order around such a change matters."""
    changed: list[str] = []
    for number, content in enumerate(nodes):
        node = _node(content, names, changed, number)
        yield node
        if _changes_in_place(content):
            changed = list(node.outputs[:1])


def _node(content: Mapping[str, Any], names: Mapping[str, str], after: Sequence[str], number: int) -> Node:
    properties, bodies, reads = {}, {}, []
    for place, argument in enumerate(content["inputs"]):
        label, value = argument["name"] or f"argument {place}", argument["arg"]
        if label in properties:
            raise ValueError(f"{content['name']} ({content['target']}) is given {label} twice")
        if "as_graph" in value:
            inner = value["as_graph"]["graph"]
            bodies[label] = _graph(inner, {n: b"" for x in inner["inputs"] for n in _names(x)}, {}, {})
        else:
            reads += [names.get(name, name) for name in _names(value)]
        literal = _without_names(value) if "as_graph" not in value else "a graph"
        properties[label] = Property(digest(repr((literal, argument.get("kind")))), partial(_text, literal))
    rest = {k: v for k, v in content.items() if k not in ("inputs", "outputs", "target", "metadata", "name")}
    properties["other fields"] = property_of(rest)
    properties["outputs"] = property_of([_without_names(output) for output in content["outputs"]])
    outputs = tuple(name for output in content["outputs"] for name in _names(output)) or (f"nothing from {number}",)
    layer = str(content.get("metadata", {}).get("nn_module_stack", "")).split(";")[-1].split(",")[1:2]
    label = f"{layer[0]}/{content['name']}" if layer and layer[0] and layer[0][0] != "_" else str(content["name"])
    operator = content["target"].removeprefix("torch.ops.")
    return Node(label, (operator,), (*reads, *after), outputs, properties, bodies)


def _changes_in_place(content: Mapping[str, Any]) -> bool:
    for argument in content["inputs"]:
        inner = argument["arg"].get("as_graph")
        if inner is not None and any(_changes_in_place(node) for node in inner["graph"]["nodes"]):
            return True
    target = content["target"].split(".")
    if target[:2] != ["torch", "ops"] or target[2] == "higher_order":
        return False
    found: Any = torch.ops
    for part in target[2:]:
        found = getattr(found, part, None)
    return bool(getattr(getattr(found, "_schema", None), "is_mutable", True))


def _names(argument: Any) -> Iterator[str]:
    """The names of values in an argument, in order."""
    if isinstance(argument, dict):
        for key, value in argument.items():
            if key in ("name", "as_name") and isinstance(value, str):
                yield value
            else:
                yield from _names(value)
    elif isinstance(argument, list):
        for value in argument:
            yield from _names(value)


def _without_names(argument: Any) -> Any:
    if isinstance(argument, dict):
        return {k: "a value" if k in ("name", "as_name") else _without_names(v) for k, v in argument.items()}
    return [_without_names(value) for value in argument] if isinstance(argument, list) else argument


def _text(literal: Any) -> str:
    values = list(literal.values()) if isinstance(literal, dict) else [literal]
    return str(values[0] if len(values) == 1 else literal)[:80]
