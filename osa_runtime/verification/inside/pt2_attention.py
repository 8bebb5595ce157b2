"""The queries, keys, values, scale and result of a captured orthogonal attention layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.fx import Graph, Node

from osa_runtime.verification.inside.model_parts import is_closed
from osa_runtime.verification.inside.pt2_slicing import solvable, works_in_place

aten = torch.ops.aten


@dataclass(frozen=True)
class Attention:
    """q, k, v: (batch, heads, N, d); out: (batch, N, heads·d), the input of the output projection."""

    q: Node
    k: Node
    v: Node
    scale: Node
    mask: Node | None
    out: Node

    def given(self) -> tuple[Node, ...]:
        """The inputs of the product, except weights."""
        return (self.q, self.k, self.v) if self.mask is None else (self.q, self.k, self.v, self.mask)


def find_attention(graph: Graph, regions: Mapping[str, Region], unit: Unit) -> Attention | None:
    """Find the attention of a layer; None if the layer is of another kind, or does not show all of these."""
    region, project = regions[unit.path], regions.get(f"{unit.path}.project")
    scale, out = _scale(graph, region), _read_by_output(regions.get(f"{unit.path}.out"))
    if project is None or scale is None or out is None:
        return None
    slices = project.leaving()
    if len(slices) != 3 or any(node.target != aten.slice.Tensor for node in slices):
        return None
    q, k, v = sorted(slices, key=lambda node: int(node.args[2]))  # type: ignore[arg-type]  # start of a slice
    found = Attention(q, k, v, scale, unit.mask, out)
    return found if _is_cut(region, project, found) else None


def _scale(graph: Graph, region: Region) -> Node | None:
    """α/√d: the only use of the layer's α."""
    for node in graph.nodes:
        if node.op == "get_attr" and node.target == f"{region.path}.alpha":
            users = [user for user in node.users if user in region.nodes]
            return users[0] if len(users) == 1 and users[0].target == aten.div.Tensor else None
    return None


def _read_by_output(region: Region | None) -> Node | None:
    entering = region.entering() if region is not None else []
    return entering[0] if len(entering) == 1 else None


def _is_cut(region: Region, project: Region, found: Attention) -> bool:
    """True if the nodes between q, k, v, the mask and the result read nothing else."""
    between = [node for node in region.nodes if node not in project.nodes and node < found.out]
    read = {source for node in between for source in node.all_input_nodes}
    outside = [node for node in read if node not in region.nodes or node in project.nodes]
    others = [node for node in outside if node.op != "get_attr" and node not in found.given()]
    return solvable(others, found.given())


@dataclass
class Region:
    """The nodes of one module, those of the modules inside it included."""

    path: str
    kind: str
    nodes: dict[Node, None] = field(default_factory=dict)  # in the order of the graph
    calls: set[str] = field(default_factory=set)

    def holds(self, other: Region) -> bool:
        return other.path.startswith(f"{self.path}.")

    def leaving(self) -> list[Node]:
        """The tensors made inside and read outside."""
        return [node for node in self.nodes if is_tensor(node) and any(user not in self.nodes for user in node.users)]

    def entering(self) -> list[Node]:
        """The values made outside and read inside, except weights."""
        read = dict.fromkeys(source for node in self.nodes for source in node.all_input_nodes)
        return [node for node in read if node not in self.nodes and node.op != "get_attr"]


@dataclass(frozen=True)
class Unit:
    """A module with a clean boundary: one tensor and perhaps a mask in, one tensor out."""

    path: str
    x: Node
    mask: Node | None
    out: Node

    def inputs(self) -> tuple[Node, ...]:
        return (self.x,) if self.mask is None else (self.x, self.mask)


def find_regions(graph: Graph) -> dict[str, Region]:
    regions: dict[str, Region] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "call_module", "output"):
            continue  # weights belong to no module, and the check of the inputs has the stack of its neighbour
        for call, (path, kind) in (node.meta.get("nn_module_stack") or {}).items():
            region = regions.setdefault(path, Region(path, kind))
            region.nodes[node] = None
            region.calls.add(call)
    return regions


def find_units(graph: Graph, regions: dict[str, Region]) -> dict[str, Unit]:
    """The units in the order of execution; of modules that return the same tensor, the innermost."""
    closed = [region for region in regions.values() if is_closed(region.kind, _children(region, regions.values()))]
    found: dict[Node, Unit] = {}
    for region in sorted(regions.values(), key=lambda region: region.path.count(".")):
        unit = None if any(outer.holds(region) for outer in closed) else _unit(region)
        if unit is not None:
            found[unit.out] = unit
    return {found[node].path: found[node] for node in graph.nodes if node in found}


def is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def is_mask(node: Node) -> bool:
    return is_tensor(node) and node.meta["val"].dtype == torch.bool


def _children(region: Region, regions: Iterable[Region]) -> Iterator[str]:
    for other in regions:
        if other.path.rpartition(".")[0] == region.path and other.path != region.path:
            yield other.kind


def _unit(region: Region) -> Unit | None:
    # The whole model is not a part of itself, and a module that is called twice has no single output.
    if not region.path or len(region.calls) != 1 or any(map(works_in_place, region.nodes)):
        return None
    leaving, entering = region.leaving(), region.entering()
    masks = [node for node in entering if is_mask(node)]
    tensors = [node for node in entering if is_tensor(node) and node not in masks]
    if len(leaving) != 1 or len(tensors) != 1 or len(masks) > 1:
        return None
    sizes = [node for node in entering if not is_tensor(node)]
    if not solvable(sizes, [*tensors, *masks]):
        return None
    return Unit(region.path, tensors[0], masks[0] if masks else None, leaving[0])
