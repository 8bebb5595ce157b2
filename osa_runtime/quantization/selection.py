"""Selection of the weights to quantise: those of products and of embeddings, outside orthogonal attention."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx

from osa_runtime.errors import InputError
from osa_runtime.manifest import AttentionCall
from osa_runtime.onnx_files import reads

PRODUCTS = ("MatMul", "Gemm")


@dataclass(frozen=True)
class Selection:
    """Names of nodes. ``tables`` are the Gather nodes of embeddings, ``kept`` those that stay in float32 on request."""

    products: tuple[str, ...]
    tables: tuple[str, ...]
    kept: tuple[str, ...]


def select(model: onnx.ModelProto, attentions: Sequence[AttentionCall], keep: Sequence[str]) -> Selection:
    """Select the nodes whose weight has no other reader, and name those without a name of their own."""
    nodes = list(model.graph.node)
    core = core_nodes(model, attentions)
    matrices = {t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) == 2}
    readers = Counter(name for node in nodes for name in reads(node))
    readers.update(value.name for value in model.graph.output)
    chosen = [n for i, n in enumerate(nodes) if i not in core and readers[_weight(n)] == 1 and _weight(n) in matrices]
    _give_names(chosen, nodes)
    kept = _kept([node.name for node in chosen], keep)
    chosen = [node for node in chosen if node.name not in kept]
    if not chosen:
        why = "keep names them all" if kept else "it has no MatMul, Gemm or Gather with a matrix of its own"
        raise InputError(f"There is no weight to quantise in the model: {why}.")
    return Selection(
        tuple(node.name for node in chosen if node.op_type in PRODUCTS),
        tuple(node.name for node in chosen if node.op_type == "Gather"),
        kept,
    )


def core_nodes(model: onnx.ModelProto, attentions: Sequence[AttentionCall]) -> set[int]:
    """The nodes of inlined orthogonal attention: those between a call's inputs and its output."""
    found: set[int] = set()
    for call in attentions:
        found |= between(model, set(call.inputs), call.output)
    return found


def between(model: onnx.ModelProto, known: Collection[str], wanted: str) -> set[int]:
    """The nodes that are needed for ``wanted`` when ``known`` is given."""
    maker = {name: index for index, node in enumerate(model.graph.node) for name in node.output if name}
    found: set[int] = set()
    waiting = [wanted]
    while waiting:
        index = maker.get(waiting.pop())
        if index is not None and index not in found:
            found.add(index)
            waiting += [name for name in reads(model.graph.node[index]) if name not in known]
    return found


def output_axis(node: onnx.NodeProto) -> int:
    """The axis of a product's weight that has one entry for each output."""
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    return 0 if node.op_type == "Gemm" and transposed else 1


def _weight(node: onnx.NodeProto) -> str:
    if node.op_type in PRODUCTS and node.domain == "":
        return node.input[1]
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    return node.input[0] if node.op_type == "Gather" and node.domain == "" and axis == 0 else ""


def _give_names(chosen: Sequence[onnx.NodeProto], nodes: Sequence[onnx.NodeProto]) -> None:
    """Name the nodes: ONNX Runtime's quantiser takes them by name."""
    taken = Counter(node.name for node in nodes)
    for node in chosen:
        if not node.name or taken[node.name] > 1:
            taken[node.name] -= 1
            base = node.name or node.op_type
            node.name = next(name for i in range(len(nodes) + 1) if not taken[name := f"{base}_{i}"])
            taken[node.name] += 1


def _kept(names: Sequence[str], keep: Sequence[str]) -> tuple[str, ...]:
    """The nodes to keep; a pattern matches a part, such as head or stack.blocks.0, or the name of a node."""
    found: set[str] = set()
    for pattern in keep:
        matching = {name for name in names if _matches(name, pattern)}
        if not matching:
            shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
            raise InputError(f"keep={pattern!r} names no weight that would be quantised; there are {shown}.")
        found |= matching
    return tuple(name for name in names if name in found)


def _matches(name: str, pattern: str) -> bool:
    parts = name.rpartition("/")[0].split(".")
    prefixes = [".".join(parts[: i + 1]) for i in range(len(parts))]
    return any(fnmatch.fnmatchcase(candidate, pattern) for candidate in (name, *prefixes))
