"""Where a captured orthogonal attention layer has its queries, keys, values, scale and result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from osa_runtime.verification.inside.pt2_parts import solvable
from osa_runtime.verification.inside.pt2_regions import Region, Unit

aten = torch.ops.aten


@dataclass(frozen=True)
class Attention:
    """q, k, v: (batch, heads, N, d); out: (batch, N, heads·d), what the output projection reads."""

    q: Node
    k: Node
    v: Node
    scale: Node
    mask: Node | None
    out: Node

    def given(self) -> tuple[Node, ...]:
        """What the product depends on, weights aside."""
        return (self.q, self.k, self.v) if self.mask is None else (self.q, self.k, self.v, self.mask)


def find_attention(graph: Graph, regions: Mapping[str, Region], unit: Unit) -> Attention | None:
    """None where the layer is of another kind, or does not show all of these."""
    region, project = regions[unit.path], regions.get(f"{unit.path}.project")
    scale, out = _scale(graph, region), _read_by_output(regions.get(f"{unit.path}.out"))
    if project is None or scale is None or out is None:
        return None
    slices = project.leaving()
    if len(slices) != 3 or any(node.target != aten.slice.Tensor for node in slices):
        return None
    q, k, v = sorted(slices, key=lambda node: int(node.args[2]))  # type: ignore[arg-type]  # where a slice starts
    found = Attention(q, k, v, scale, unit.mask, out)
    return found if _is_cut(region, project, found) else None


def _scale(graph: Graph, region: Region) -> Node | None:
    """α/√d: the one thing that is done with the layer's α."""
    for node in graph.nodes:
        if node.op == "get_attr" and node.target == f"{region.path}.alpha":
            users = [user for user in node.users if user in region.nodes]
            return users[0] if len(users) == 1 and users[0].target == aten.div.Tensor else None
    return None


def _read_by_output(region: Region | None) -> Node | None:
    entering = region.entering() if region is not None else []
    return entering[0] if len(entering) == 1 else None


def _is_cut(region: Region, project: Region, found: Attention) -> bool:
    """Whether nothing but q, k, v and the mask leads into what lies between them and the result."""
    between = [node for node in region.nodes if node not in project.nodes and node < found.out]
    read = {source for node in between for source in node.all_input_nodes}
    outside = [node for node in read if node not in region.nodes or node in project.nodes]
    others = [node for node in outside if node.op != "get_attr" and node not in found.given()]
    return solvable(others, found.given())
