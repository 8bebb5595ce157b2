"""Layers of orthogonal attention that are one node of an ONNX graph, and the same with their projections as nodes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from osa_runtime.manifest import AttentionCall
from osa_runtime.onnx_files import with_inner
from osa_runtime.onnx_functions import expanded

DOMAIN, LAYER, ATTENTION = "ai.osa", "OrthogonalSelfAttention", "OrthogonalAttention"
JOINED = f"{LAYER}Linear"  # the layer, and a linear one behind it


def is_layer(node: onnx.NodeProto) -> bool:
    """True for a node with the inputs x, weight, out, scale and perhaps mask."""
    return node.domain == DOMAIN and node.op_type == LAYER


def with_linear_apart(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each layer and the linear one behind it as nodes of their own, named after their modules."""
    if not any(node.domain == DOMAIN and node.op_type == JOINED for node in model.graph.node):
        return model
    result = copy.deepcopy(model)
    del result.graph.node[:]
    for node in model.graph.node:
        result.graph.node.extend(_taken_apart(node) if node.op_type == JOINED else [node])
    _drop_unused_functions(result)
    return result


def _taken_apart(node: onnx.NodeProto) -> Iterable[onnx.NodeProto]:
    *inputs, linear, bias = node.input
    base = linear.removesuffix("/MatMul.weight") if linear.endswith("/MatMul.weight") else f"{node.name}.linear"
    yield helper.make_node(LAYER, inputs, [node.name, *node.output[1:]], node.name, domain=DOMAIN)
    yield helper.make_node("MatMul", [node.name, linear], [f"{base}/MatMul"], f"{base}/MatMul")
    yield helper.make_node("Add", [f"{base}/MatMul", bias], [node.output[0]], f"{base}/Add")


def with_projections(
    model: onnx.ModelProto, calls: Sequence[AttentionCall]
) -> tuple[onnx.ModelProto, tuple[AttentionCall, ...]]:
    """The model and its calls with the products of each layer in the graph, where their weights can be rewritten.

    The functions of modules are expanded for the same reason.
    """
    model = with_linear_apart(expanded(model))
    if not any(map(is_layer, model.graph.node)):
        return model, tuple(calls)
    result = copy.deepcopy(model)
    sizes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    shapes: dict[str, list[int]] = {}
    del result.graph.node[:]
    for node in model.graph.node:
        result.graph.node.extend(_written_out(node, sizes, shapes) if is_layer(node) else [node])
    result.graph.initializer.extend(numpy_helper.from_array(np.array(v, np.int64), k) for k, v in shapes.items())
    _drop_unused_functions(result)
    found = {node.name.rpartition("/")[0]: node for node in result.graph.node if node.op_type == ATTENTION}
    return result, tuple(_call(call, found[call.name]) if call.name in found else call for call in calls)


def _written_out(
    node: onnx.NodeProto, sizes: dict[str, list[int]], shapes: dict[str, list[int]]
) -> Iterable[onnx.NodeProto]:
    x, weight, out, scale, *mask = node.input
    base = node.name.rpartition("/")[0]
    packed, rows, heads = f"{base}.project/MatMul", f"{base}.project/Reshape", f"{base}.project/Transpose"
    shapes[f"{rows}.shape"] = [0, 0, sizes[scale][0], sizes[weight][1] // sizes[scale][0]]
    shapes[f"{base}/Reshape.shape"], shapes[f"{base}/Unsqueeze.axes"] = [0, 0, -1], [1]
    parts = [f"{base}.project/Split", f"{base}.project/Split.1", f"{base}.project/Split.2"]
    attended, turned, merged = (f"{base}/{name}" for name in (ATTENTION, "Transpose", "Reshape"))
    yield helper.make_node("MatMul", [x, weight], [packed], packed)
    yield helper.make_node("Reshape", [packed, f"{rows}.shape"], [rows], rows)
    yield helper.make_node("Transpose", [rows], [heads], heads, perm=[0, 2, 1, 3])
    yield helper.make_node("Split", [heads], parts, parts[0], axis=-1, num_outputs=3)
    if mask:
        yield helper.make_node("Unsqueeze", [mask[0], f"{base}/Unsqueeze.axes"], [f"{base}/Unsqueeze"])
        mask = [f"{base}/Unsqueeze"]
    outputs = [attended, *node.output[1:]]
    yield helper.make_node(ATTENTION, [*parts, scale, *mask], outputs, attended, domain=DOMAIN)
    yield helper.make_node("Transpose", [attended], [turned], turned, perm=[0, 2, 1, 3])
    yield helper.make_node("Reshape", [turned, f"{base}/Reshape.shape"], [merged], merged)
    yield helper.make_node("MatMul", [merged, out], [node.output[0]], f"{base}.out/MatMul")


def _call(call: AttentionCall, node: onnx.NodeProto) -> AttentionCall:
    return AttentionCall(call.name, tuple(node.input), node.output[0], call.squarings, call.scale)


def _drop_unused_functions(model: onnx.ModelProto) -> None:
    functions = {function.name: function for function in model.functions}
    waiting, needed = _called(model.graph.node), set[str]()
    while waiting:
        name = waiting.pop()
        if name in functions and name not in needed:
            needed.add(name)
            waiting += _called(functions[name].node)
    kept = [function for function in model.functions if function.name in needed]
    del model.functions[:]
    model.functions.extend(kept)


def _called(nodes: Iterable[onnx.NodeProto]) -> list[str]:
    return [node.op_type for node in with_inner(nodes) if node.domain == DOMAIN]
