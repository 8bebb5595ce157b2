"""The main graph of an ONNX model as boxes and arrows, with repeated blocks folded into one: what a drawing shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from osa_runtime.exporters.onnx_tensors import axes
from osa_runtime.exporters.repetition import Repetition, find_repetition

KINDS = {
    "product": {"MatMul", "Gemm", "Conv", "Einsum"},
    "layout": {
        "Reshape", "Transpose", "Slice", "Concat", "Split", "Squeeze", "Unsqueeze", "Expand", "Gather", "Shape", "Cast",
        "CastLike", "Flatten", "Identity", "Constant", "ConstantOfShape", "Tile", "Size", "Range", "Pad", "GatherND",
    },
    "control": {"If", "Loop", "Scan"},
}  # fmt: skip


@dataclass(frozen=True)
class Box:
    """One thing to draw. ``kind`` decides its look: input, output, function, product, layout, control or value."""

    key: str
    title: str
    detail: str
    kind: str
    folded: bool = False  # a member of the repeated block


@dataclass(frozen=True)
class Arrow:
    source: str
    target: str
    label: str = ""


@dataclass(frozen=True)
class Outline:
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    repetition: Repetition | None


def outline(model: onnx.ModelProto) -> Outline:
    """Weights and constants are left out; their shapes stand in the box of the node that reads them."""
    nodes = [node for node in model.graph.node if node.op_type != "Constant"]
    made = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    reads = [[name for name in _reads(node) if name in made] for node in nodes]
    repetition = find_repetition(
        [f"{node.domain}:{node.op_type}" for node in nodes],
        [tuple(made[name] for name in names) for names in reads],
        [node.name for node in nodes],
    )
    kept = _representatives(len(nodes), repetition)
    calls = {(f.domain, f.name) for f in model.functions}
    weights = _weight_shapes(model)
    inputs = [value for value in model.graph.input if value.name not in weights]
    boxes = [Box(f"input {v.name}", v.name, _shape(v), "input") for v in inputs]
    boxes += [_box(nodes[i], i, calls, weights, repetition) for i, first in kept.items() if i == first]
    boxes += [Box(f"output {v.name}", v.name, _shape(v), "output") for v in model.graph.output]
    return Outline(tuple(boxes), tuple(_arrows(model, nodes, made, kept)), repetition)


def _arrows(
    model: onnx.ModelProto, nodes: list[onnx.NodeProto], made: dict[str, int], kept: dict[int, int]
) -> Iterator[Arrow]:
    labels = {v.name: _shape(v) for v in model.graph.value_info}
    sources = {v.name: f"input {v.name}" for v in model.graph.input}
    sources |= {name: f"node {kept[index]}" for name, index in made.items()}
    seen = set()
    for index, node in enumerate(nodes):
        if kept[index] != index:
            continue
        for name in dict.fromkeys(_reads(node)):
            pair = (sources.get(name), f"node {index}")
            if pair[0] is not None and pair[0] != pair[1] and pair not in seen:
                seen.add(pair)
                yield Arrow(pair[0], pair[1], labels.get(name, ""))
    for value in model.graph.output:
        if value.name in sources:
            yield Arrow(sources[value.name], f"output {value.name}")


def _representatives(count: int, repetition: Repetition | None) -> dict[int, int]:
    """For each node the one that is drawn: itself, or its twin in the first block."""
    kept = {index: index for index in range(count)}
    blocks = repetition.blocks if repetition else ()
    for block in blocks:
        kept.update(zip(block, blocks[0], strict=True))
    return kept


def _box(
    node: onnx.NodeProto,
    index: int,
    calls: set[tuple[str, str]],
    weights: dict[str, str],
    repetition: Repetition | None,
) -> Box:
    folded = repetition is not None and index in repetition.blocks[0]
    path = node.name.rpartition("/")[0]
    if folded and repetition is not None:
        path = path.removeprefix(repetition.path).lstrip(".")
    shapes = ", ".join(dict.fromkeys(weights[name] for name in node.input if weights.get(name)))
    bodies = sum(len(a.g.node) for a in node.attribute)
    parts = [path, shapes, f"{bodies} nodes inside" if bodies else ""]
    title = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    return Box(f"node {index}", title, " · ".join(part for part in parts if part), _kind(node, calls), folded)


def _kind(node: onnx.NodeProto, calls: set[tuple[str, str]]) -> str:
    if (node.domain, node.op_type) in calls or node.domain not in ("", "ai.onnx"):
        return "function"
    return next((kind for kind, operators in KINDS.items() if node.op_type in operators), "value")


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, those that the bodies of If and Loop take from outside included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            own = {value.name for value in (*body.input, *body.initializer)}
            own |= {name for inner in body.node for name in inner.output}
            yield from (name for inner in body.node for name in _reads(inner) if name not in own)


def _weight_shapes(model: onnx.ModelProto) -> dict[str, str]:
    """Of whole numbers, which are axes and sizes, and of single numbers the shape says nothing: empty."""
    floats = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE}
    return {t.name: " × ".join(map(str, t.dims)) if t.data_type in floats else "" for t in model.graph.initializer}


def _shape(value: onnx.ValueInfoProto) -> str:
    return " × ".join(map(str, axes(value.type.tensor_type)))
