"""The main graph of an ONNX model as boxes and arrows, with repeated blocks folded into one: what a drawing shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx

from osa_runtime.onnx_files import axes, makers, reads

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
class FoldedGraph:
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    repetition: Repetition | None


def fold(model: onnx.ModelProto) -> FoldedGraph:
    """Fold the graph, without weights and constants; their shapes are in the box of the node that reads them."""
    nodes = [node for node in model.graph.node if node.op_type != "Constant"]
    made = makers(nodes)
    repetition = find_repetition(
        [f"{node.domain}:{node.op_type}" for node in nodes],
        [tuple(made[name] for name in reads(node) if name in made) for node in nodes],
        [node.name for node in nodes],
    )
    kept = _representatives(len(nodes), repetition)
    calls = {(f.domain, f.name) for f in model.functions}
    weights = _weight_shapes(model)
    inputs = [value for value in model.graph.input if value.name not in weights]
    boxes = [Box(f"input {v.name}", v.name, _shape(v), "input") for v in inputs]
    boxes += [_box(nodes[i], i, calls, weights, repetition) for i, first in kept.items() if i == first]
    boxes += [Box(f"output {v.name}", v.name, _shape(v), "output") for v in model.graph.output]
    return FoldedGraph(tuple(boxes), tuple(_arrows(model, nodes, made, kept)), repetition)


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
        for name in dict.fromkeys(reads(node)):
            pair = (sources.get(name), f"node {index}")
            if pair[0] is not None and pair[0] != pair[1] and pair not in seen:
                seen.add(pair)
                yield Arrow(pair[0], pair[1], labels.get(name, ""))
    for value in model.graph.output:
        if value.name in sources:
            yield Arrow(sources[value.name], f"output {value.name}")


def _representatives(count: int, repetition: Repetition | None) -> dict[int, int]:
    """The node that is drawn for each node: itself, or its counterpart in the first block."""
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


def _weight_shapes(model: onnx.ModelProto) -> dict[str, str]:
    """The shapes of weights; empty for whole numbers, which are axes and sizes, and for single numbers."""
    floats = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE}
    return {t.name: " × ".join(map(str, t.dims)) if t.data_type in floats else "" for t in model.graph.initializer}


def _shape(value: onnx.ValueInfoProto) -> str:
    return " × ".join(map(str, axes(value.type.tensor_type)))


SMALLEST_BLOCK = 4  # shorter repetitions are not blocks: the three slices of q, k and v
LARGEST_BLOCK = 400  # keeps the search below a second or two for graphs of thousands of nodes

Readers = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Repetition:
    """A repeated block: the nodes of each repetition, in the same order. ``path`` names the first."""

    blocks: tuple[tuple[int, ...], ...]
    path: str

    @property
    def name(self) -> str:
        """``stack.blocks.0 to 7``"""
        match = re.search(r"^(.*?)(\d+)$", self.path)
        if match is None:
            return self.path or "block"
        return f"{match[1]}{match[2]} to {int(match[2]) + len(self.blocks) - 1}"


def find_repetition(operators: Sequence[str], reads: Readers, names: Sequence[str]) -> Repetition | None:
    """The repetition that covers most nodes, or None. ``reads`` holds the nodes that each node reads."""
    readers = _readers(reads)
    best: tuple[int, int, int, list[int]] | None = None  # nodes in whole blocks, start, period, the order
    for period in range(SMALLEST_BLOCK, min(len(operators) // 2, LARGEST_BLOCK) + 1):
        order = _without_shared(reads, readers, period)
        covered, start = _longest_run(operators, reads, order, period)
        whole = covered // period * period
        if whole >= 2 * period and (best is None or whole > best[0]):
            start = _aligned(start, covered - whole, period, [names[index] for index in order])
            best = (whole, start, period, order)
    if best is None:
        return None
    whole, start, period, order = best
    blocks = tuple(tuple(order[begin : begin + period]) for begin in range(start, start + whole, period))
    return Repetition(blocks, _common_path([names[index] for index in blocks[0]]))


def _readers(reads: Readers) -> list[list[int]]:
    readers: list[list[int]] = [[] for _ in reads]
    for index, sources in enumerate(reads):
        for source in sources:
            readers[source].append(index)
    return readers


def _without_shared(reads: Readers, readers: Readers, period: int) -> list[int]:
    """The nodes in order, without those shared by blocks, such as a mask or a shape, and those that only lead there."""
    shared = {index for index, later in enumerate(readers) if later and later[-1] - index > period}
    for index in range(len(reads) - 1, -1, -1):
        if readers[index] and shared.issuperset(readers[index]):
            shared.add(index)
    return [index for index in range(len(reads)) if index not in shared]


def _longest_run(operators: Sequence[str], reads: Readers, order: Sequence[int], period: int) -> tuple[int, int]:
    """The number of nodes in the longest stretch of this period, and its start."""
    place = {index: position for position, index in enumerate(order)}
    best, run = (0, 0), 0
    for position in range(len(order) - period):
        one, other = order[position], order[position + period]
        same = operators[one] == operators[other] and (
            _wiring(one, operators, reads, place) == _wiring(other, operators, reads, place)
        )
        run = run + 1 if same else 0
        if run and run + period > best[0]:
            best = (run + period, position - run + 1)
    return best


def _wiring(index: int, operators: Sequence[str], reads: Readers, place: dict[int, int]) -> list[int | str]:
    """The distances to the inputs of a node; for shared inputs, only the operator counts."""
    return [place[index] - place[s] if s in place else operators[s] for s in reads[index]]


def _aligned(start: int, spare: int, period: int, names: Sequence[str]) -> int:
    """Align the run, which may begin a node or two before the first block, by the module names."""
    return max(
        range(start, start + spare + 1), key=lambda begin: (len(_common_path(names[begin : begin + period])), begin)
    )


def _common_path(names: Sequence[str]) -> str:
    paths = [name.rpartition("/")[0].split(".") for name in names if "/" in name]  # inlined nodes have no path
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)
