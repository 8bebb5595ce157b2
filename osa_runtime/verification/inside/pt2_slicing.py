"""A part of a captured graph as a module of its own: from values that are given to one that is wanted.

``torch.export.unflatten`` does not do this: its modules take sizes that the whole graph reads from its inputs, so that
none can run alone, on tensors of other shapes, or up to a value in the middle of a module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from osa_runtime.errors import InputError


class GraphPart:
    """The nodes between ``given`` and ``wanted``, which run as they are in the whole graph.

    Sizes that the whole graph reads from its inputs are derived from the shapes of the given tensors.
    """

    def __init__(self, whole: GraphModule, given: Sequence[Node], wanted: Node) -> None:
        self._whole, self._given, self._wanted = whole, tuple(given), wanted
        needed = _needed(given, wanted)
        self._sizes = [node for node in needed if is_size(node)]
        self._nodes = [node for node in needed if node not in self._sizes]
        self._module = _extract(whole, [*given, *self._sizes], self._nodes, wanted)

    def __call__(self, *tensors: Tensor) -> Tensor:
        return self._module(*tensors, *self._measured_sizes(tensors).values())

    def fixed(self, *tensors: Tensor) -> GraphModule:
        """A module that takes tensors of these shapes only, and no other input."""
        sizes = self._measured_sizes(tensors)
        return _extract(self._whole, self._given, self._nodes, self._wanted, sizes)

    def _measured_sizes(self, tensors: Sequence[Tensor]) -> dict[Node, int]:
        known = _measured(self._given, tensors)
        return {node: int(_expression(node).subs(known)) for node in self._sizes}


class Between:
    """The operators outside some units: from the inputs of the graph and the values at ``cuts`` to ``wanted`` ones.

    Readers of a cut read the tensor given for it. A wanted value may be a cut: it is computed, too, unless the cut
    is True: then a unit computes it.
    """

    def __init__(self, whole: GraphModule, cuts: Mapping[Node, bool], wanted: Sequence[Node]) -> None:
        self._inputs = [node for node in whole.graph.nodes if node.op == "placeholder"]
        self._module = _glue(whole, [*self._inputs, *cuts], cuts, wanted)

    def __call__(self, feeds: Sequence[Tensor], given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return self._module(*feeds, *(x.clone() for x in given))  # given tensors may be changed in place

    def module(self) -> GraphModule:
        return self._module


class Beginning:
    """The graph from its inputs up to the last of ``wanted``, including its checks."""

    def __init__(self, whole: GraphModule, wanted: Sequence[Node]) -> None:
        nodes = list(whole.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        end = max(map(nodes.index, wanted), default=-1) + 1
        self._module = _extract(
            whole, inputs, [node for node in nodes[:end] if node.op != "placeholder"], tuple(wanted)
        )

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self._module(*tensors)


def is_size(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt)


def solvable(sizes: Sequence[Node], given: Sequence[Node]) -> bool:
    """True if these sizes follow from the shapes of the given tensors."""
    shapes = [node.meta["val"].shape for node in given]
    known = {_symbolic(size): 1 for shape in shapes for size in shape if isinstance(size, torch.SymInt)}
    return all(is_size(node) and _expression(node).subs(known).is_number for node in sizes)


def _needed(given: Sequence[Node], wanted: Node) -> list[Node]:
    """The nodes from the given values to the wanted one, in the order of the graph; sizes are not followed further."""
    found: set[Node] = set()
    waiting = [wanted]
    while waiting:
        node = waiting.pop()
        if node not in found and node not in given:
            found.add(node)
            waiting.extend([] if is_size(node) else node.all_input_nodes)
    return sorted(found)


def _extract(
    whole: GraphModule,
    inputs: Sequence[Node],
    nodes: Sequence[Node],
    wanted: Node | tuple[Node, ...],
    constants: Mapping[Node, int] | None = None,
) -> GraphModule:
    graph, outputs = Graph(), (wanted,) if isinstance(wanted, Node) else wanted
    copies: dict[Node, Any] = {node: graph.placeholder(node.name) for node in inputs} | dict(constants or {})
    kept: dict[Node, Node] = {}
    for node in [*inputs, *nodes]:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        if node in outputs:
            # Copied at once: a later node may work in place.
            kept[node] = graph.call_function(torch.ops.aten.clone.default, (copies[node],))
    graph.output(kept[wanted] if isinstance(wanted, Node) else tuple(kept[node] for node in wanted))
    return GraphModule(whole, graph)  # its code drops each value after the last use


def _glue(whole: GraphModule, inputs: Sequence[Node], cuts: Mapping[Node, bool], wanted: Sequence[Node]) -> GraphModule:
    made = {node for node in wanted if node.op != "placeholder" and not cuts.get(node)}
    graph = Graph()
    read: dict[Node, Any] = {node: graph.placeholder(f"{node.name}_given") for node in inputs}
    kept = {node: _clone(graph, read[node]) for node in wanted if node not in made}
    for node in _leading_to(made, cuts):
        copy = graph.node_copy(node, read.__getitem__)
        read.setdefault(node, copy)
        if node in made:
            kept[node] = _clone(graph, copy)
    graph.output(tuple(kept[node] for node in wanted))
    return GraphModule(whole, graph)


def _clone(graph: Graph, node: Node) -> Node:
    """Copy at once: a later node may work in place."""
    return graph.call_function(torch.ops.aten.clone.default, (node,))


def _leading_to(made: set[Node], cuts: Mapping[Node, bool]) -> list[Node]:
    found: set[Node] = set()
    waiting = list(made)
    while waiting:
        node = waiting.pop()
        if node not in found and node.op != "placeholder":
            found.add(node)
            waiting.extend(source for source in node.all_input_nodes if source not in cuts)
            # In-place operators count, although nothing may read their result.
            waiting.extend(user for user in node.users if works_in_place(user) and user not in cuts)
    return sorted(found)


def works_in_place(node: Node) -> bool:
    """True for an in-place operator: then a value depends on when it is read, which edges do not show."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _measured(given: Sequence[Node], tensors: Sequence[Tensor]) -> Mapping[Any, int]:
    """The symbolic sizes of the given values, from the tensors that stand for them."""
    known: dict[Any, int] = {}
    for node, tensor in zip(given, tensors, strict=True):
        declared = node.meta["val"]
        fits = declared.dim() == tensor.dim() and declared.dtype == tensor.dtype
        for expected, size in zip(declared.shape, tensor.shape, strict=False):
            fixed = expected if isinstance(expected, int) else known.setdefault(_symbolic(expected), size)
            fits = fits and fixed == size
        if not fits:
            raise InputError(
                f"Got {tensor.dtype} of shape {tuple(tensor.shape)}, expected {declared.dtype} of shape "
                f"{tuple(declared.shape)}, with the same size wherever a name is the same."
            )
    return known


def _expression(node: Node) -> Any:
    return _symbolic(node.meta["val"])


def _symbolic(size: torch.SymInt) -> Any:
    return size.node.expr
