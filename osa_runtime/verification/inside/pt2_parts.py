"""The parts of a torch.export artifact, found by the modules recorded in its nodes, and its attention layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves

from osa_runtime.errors import InputError
from osa_runtime.exporters.examples import Examples
from osa_runtime.exporters.torch_exports import save_pt2
from osa_runtime.runtime.session import Session
from osa_runtime.runtime.torch_session import TorchSession, read_pt2
from osa_runtime.steps import Progress
from osa_runtime.verification.inside.model_parts import Array, Calls, Core, Glue, ModelParts, Written, is_closed
from osa_runtime.verification.inside.pt2_slicing import Beginning, Between, GraphPart, solvable, works_in_place
from osa_runtime.verification.inside.torch_arrays import check_known, ordered, running, to_array, to_tensor
from osa_runtime.verification.inside.whole_layer import WholeLayer

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


@dataclass(frozen=True)
class Folding:
    """A layer that folds, with queries, keys and values in a branch only: the two ways to its output are ``choice``."""

    unit: Unit
    weight: Node
    into: Node
    scale: Node
    choice: Node


def find_folding(graph: Graph, regions: Mapping[str, Region], unit: Unit) -> Folding | None:
    region = regions[unit.path]
    weights = {node.target: node for node in graph.nodes if node.op == "get_attr"}
    found = [weights.get(f"{unit.path}.{name}.weight") for name in ("project", "out")]
    scale, choices = _scale(graph, region), [n for n in region.nodes if n.target is torch.ops.higher_order.cond]
    given = {scale, *found, *unit.inputs()}
    last = next((node for node in reversed(choices) if given <= {*node.all_input_nodes}), None)
    if scale is None or found[0] is None or found[1] is None or last is None:
        return None
    return Folding(unit, found[0], found[1], scale, last)


class FoldedLayer(WholeLayer):
    def __init__(self, whole: GraphModule, found: Folding) -> None:
        self._found = found
        self._own = [*found.unit.inputs(), found.weight, found.into]
        self._layer = GraphPart(whole, self._own, found.unit.out)
        arguments: Any = found.choice.args
        _, by_parts, _, self._operands = arguments
        self._by_parts = getattr(whole, by_parts.target)

    def run(
        self, x: Array, weight: Array, out: Array, scale: Array, mask: Array | None
    ) -> tuple[Array, int | None, Array]:
        """The whole layer, or the branch that computes heads for tokens that are not those of the layer."""
        kind = self._found.weight.meta["val"].dtype
        tokens, packing, merging = (to_tensor(value).to(kind) for value in (x, weight.T, out.T))
        packed = to_array(torch.nn.functional.linear(tokens, packing))
        masks = () if self._found.unit.mask is None else (to_tensor(_all_real(x) if mask is None else mask),)
        if packing.shape == self._found.weight.meta["val"].shape:
            return to_array(self._layer(tokens, *masks, packing, merging)), None, packed
        given = dict(zip(self._own, (tokens, *masks, packing, merging), strict=True))
        given[self._found.scale] = to_tensor(scale).to(kind)
        (found,) = self._by_parts(*(given.get(node, tokens) for node in self._operands))  # it reads no others
        return to_array(found), None, packed


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


class Pt2Parts(ModelParts):
    def __init__(self, path: Path, input_names: Sequence[str], whole: GraphModule | None = None) -> None:
        """``whole`` is the program where it is loaded already; its graph is only read."""
        self._path, self._input_names = path, tuple(input_names)
        self._whole = whole or read_pt2(torch, path, "cpu")[0]
        graph = self._whole.graph
        regions = find_regions(graph)
        self._units = find_units(graph, regions)
        found = {name: find_attention(graph, regions, unit) for name, unit in self._units.items()}
        self._attentions = {name: attention for name, attention in found.items() if attention is not None}
        others = {n: find_folding(graph, regions, unit) for n, unit in self._units.items() if n not in self._attentions}
        self._foldings = {name: folding for name, folding in others.items() if folding is not None}
        self.units = tuple(self._units)
        self.attentions = tuple(name for name in self.units if name in self._attentions or name in self._foldings)
        self._parts: dict[str, GraphPart] = {}
        self._layers: dict[str, FoldedLayer] = {}

    @classmethod
    def of(cls, session: Session, _: int | None) -> Self:
        assert isinstance(session, TorchSession)
        whole = session.module if session.placement.device == "cpu" else None
        return cls(session.path, [spec.name for spec in session.inputs], whole)

    def outputs_of(self, units: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        check_known(units, self.units, self._path)
        nodes = {self._units[name].out for name in units}
        values = self._run(nodes, feeds)
        return {name: values[self._units[name].out] for name in units}

    def inputs_of(self, units: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        check_known(units, self.units, self._path)
        values = self._run({self._units[name].x for name in units}, feeds)
        return {name: values[self._units[name].x] for name in units}

    def call(self, unit: str, inputs: Sequence[Array], feeds: Mapping[str, Array] | None = None) -> Array:  # noqa: ARG002
        check_known([unit], self.units, self._path)
        found = self._checked(unit, inputs)
        return self._run_part(unit, found.inputs(), found.out, inputs)

    def cores_of(self, attentions: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Core]:
        check_known(attentions, self.attentions, self._path)
        found = {name: self._attentions[name] for name in attentions if name in self._attentions}
        foldings = {name: self._foldings[name] for name in attentions if name in self._foldings}
        wanted = {node for a in found.values() for node in (*a.given(), a.scale, a.out)}
        wanted |= {node for f in foldings.values() for node in (*f.unit.inputs(), f.weight, f.scale)}
        values = self._run(wanted, feeds)
        cores = {name: _core(attention, values) for name, attention in found.items()}
        for name, folding in foldings.items():
            x, weight, scale = (values[node] for node in (folding.unit.x, folding.weight, folding.scale))
            mask = None if folding.unit.mask is None else values[folding.unit.mask]
            with running(self._path, f"the heads of {name}"):
                cores[name] = self._folded(folding).core(x, weight.T, scale, mask)
        return {name: cores[name] for name in attentions}

    def apply_attention(self, attention: str, core: Core, v: Array) -> Array:
        check_known([attention], self.attentions, self._path)
        if attention in self._foldings:
            with running(self._path, f"exp(S)·v in {attention}"):
                return self._folded(self._foldings[attention]).applied(core, v)
        found = self._attentions[attention]
        inputs = [core.q, core.k, v]
        if found.mask is not None:
            inputs.append(_layer_mask(core))
        elif core.mask is not None:
            raise InputError(f"{attention} of {self._path} takes no mask; pass a core without one.")
        out = self._run_part(f"exp(S)·v in {attention}", found.given(), found.out, inputs)
        return _per_head(out, v.shape)

    def _folded(self, folding: Folding) -> FoldedLayer:
        path = folding.unit.path
        if path not in self._layers:
            self._layers[path] = FoldedLayer(self._whole, folding)
        return self._layers[path]

    def between(self, calls: Calls, feeds: Mapping[str, Array]) -> Glue:
        units = {name: self._units[name] for name in calls}
        masks = {name: unit.mask for name, unit in units.items() if unit.mask is not None}
        nodes = dict.fromkeys([*(unit.x for unit in units.values()), *masks.values(), *self._outputs()])
        with running(self._path, "the operators between the parts"):
            values = Between(self._whole, self._cuts(calls), list(nodes))(
                ordered(feeds, self._input_names), self._given(calls)
            )
            found = dict(zip(nodes, map(to_array, values), strict=True))
        inputs = {name: found[unit.x] for name, unit in units.items()}
        return Glue(inputs, tuple(map(found.__getitem__, self._outputs())), {n: found[m] for n, m in masks.items()})

    def write_unit(self, unit: str, inputs: Sequence[Array], folder: Path, _: Mapping[str, Array]) -> Written:
        """Write the unit for inputs of these shapes."""
        check_known([unit], self.units, self._path)
        found = self._checked(unit, inputs)
        names, tensors = ("x", "mask")[: len(inputs)], tuple(map(to_tensor, inputs))
        module = GraphPart(self._whole, found.inputs(), found.out).fixed(*tensors)
        return _write(module, dict(zip(names, inputs, strict=True)), folder)

    def write_between(self, end: str | int, calls: Calls, feeds: Mapping[str, Array], folder: Path) -> Written:
        wanted = self._outputs()[end] if isinstance(end, int) else self._units[end].x
        glue = Between(self._whole, self._cuts(calls), [wanted])
        given = {f"given_{i}": x.numpy() for i, x in enumerate(self._given(calls))}
        return _write(glue.module(), {name: feeds[name] for name in self._input_names} | given, folder)

    def _outputs(self) -> list[Node]:
        return [node for node in tree_leaves(self._whole.graph.output_node().args) if isinstance(node, Node)]

    def _cuts(self, calls: Calls) -> dict[Node, bool]:
        found = [self._units[name] for name in calls]
        taken = {unit.x: False for unit in found if unit.x.op != "placeholder"}
        return taken | {unit.out: True for unit in found}

    def _given(self, calls: Calls) -> list[Tensor]:
        taken = {self._units[name].x: inputs[0] for name, (inputs, _) in calls.items()}
        values = taken | {self._units[name].out: out for name, (_, out) in calls.items()}
        return [to_tensor(values[node]) for node in self._cuts(calls)]

    def close(self) -> None:
        self._parts.clear()
        self._layers.clear()
        self._whole = None

    def _checked(self, unit: str, inputs: Sequence[Array]) -> Unit:
        found = self._units[unit]
        if len(inputs) != len(found.inputs()):
            expected = "one tensor" if found.mask is None else "a tensor and a mask"
            raise InputError(f"{unit} of {self._path} takes {expected}, got {len(inputs)} inputs.")
        return found

    def _run(self, nodes: set[Node], feeds: Mapping[str, Array]) -> dict[Node, Array]:
        wanted = sorted(nodes)
        with running(self._path, "the whole"):
            values = Beginning(self._whole, wanted)(*ordered(feeds, self._input_names))
            return {node: to_array(value) for node, value in zip(wanted, values, strict=True)}

    def _run_part(self, name: str, given: Sequence[Node], wanted: Node, inputs: Sequence[Array]) -> Array:
        with running(self._path, name):
            if name not in self._parts:
                self._parts[name] = GraphPart(self._whole, given, wanted)
            return to_array(self._parts[name](*map(to_tensor, inputs)))


def _write(module: torch.fx.GraphModule, inputs: Mapping[str, Array], folder: Path) -> Written:
    tensors = tuple(map(to_tensor, inputs.values()))
    save_pt2(module, Examples(tuple(inputs), tensors, tuple({} for _ in inputs)), folder / "unit.pt2", Progress(None))
    return Written("unit.pt2", inputs)


def _core(attention: Attention, values: Mapping[Node, Array]) -> Core:
    q, k, v, scale = (values[node] for node in (attention.q, attention.k, attention.v, attention.scale))
    mask = None if attention.mask is None else values[attention.mask][:, None, :]
    return Core(q, k, v, scale, mask, _per_head(values[attention.out], v.shape))


def _per_head(merged: Array, shape: tuple[int, ...]) -> Array:
    """(batch, N, heads·d) → (batch, heads, N, d)."""
    batch, heads, tokens, width = shape
    return np.ascontiguousarray(merged.reshape(batch, tokens, heads, width).swapaxes(1, 2))


def _all_real(x: Array) -> Array:
    return np.ones(x.shape[:2], dtype=np.bool_)


def _layer_mask(core: Core) -> Array:
    """The mask in the shape that the layer takes, (batch, N)."""
    batch, heads, tokens, _ = core.q.shape
    if core.mask is None:
        return np.ones((batch, tokens), dtype=np.bool_)
    masks = np.broadcast_to(core.mask, (batch, heads, tokens))
    if not (masks == masks[:, :1]).all():
        raise InputError("The layer takes one mask for all heads, but the masks of the heads differ.")
    return masks[:, 0]
