"""The parts of a torch.export artifact, found by the modules recorded in its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from osa_runtime.errors import InputError
from osa_runtime.exporters.examples import Examples
from osa_runtime.exporters.pt2_export import save_pt2
from osa_runtime.runtime.session import Session
from osa_runtime.runtime.torch_session import TorchSession, read_pt2
from osa_runtime.steps import Progress
from osa_runtime.verification.inside.model_parts import Array, Calls, Core, Glue, ModelParts, Written
from osa_runtime.verification.inside.pt2_attention import Attention, Unit, find_attention, find_regions, find_units
from osa_runtime.verification.inside.pt2_slicing import Beginning, Between, GraphPart
from osa_runtime.verification.inside.torch_arrays import check_known, ordered, running, to_array, to_tensor


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
        self.units, self.attentions = tuple(self._units), tuple(self._attentions)
        self._parts: dict[str, GraphPart] = {}

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
        found = {name: self._attentions[name] for name in attentions}
        values = self._run({node for a in found.values() for node in (*a.given(), a.scale, a.out)}, feeds)
        return {name: _core(attention, values) for name, attention in found.items()}

    def apply_attention(self, attention: str, core: Core, v: Array) -> Array:
        check_known([attention], self.attentions, self._path)
        found = self._attentions[attention]
        inputs = [core.q, core.k, v]
        if found.mask is not None:
            inputs.append(_layer_mask(core))
        elif core.mask is not None:
            raise InputError(f"{attention} of {self._path} takes no mask; pass a core without one.")
        out = self._run_part(f"exp(S)·v in {attention}", found.given(), found.out, inputs)
        return _per_head(out, v.shape)

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

    def write_unit(
        self,
        unit: str,
        inputs: Sequence[Array],
        folder: Path,
        feeds: Mapping[str, Array] | None = None,  # noqa: ARG002
    ) -> Written:
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


def _layer_mask(core: Core) -> Array:
    """The mask in the shape that the layer takes, (batch, N)."""
    batch, heads, tokens, _ = core.q.shape
    if core.mask is None:
        return np.ones((batch, tokens), dtype=np.bool_)
    masks = np.broadcast_to(core.mask, (batch, heads, tokens))
    if not (masks == masks[:, :1]).all():
        raise InputError("The layer takes one mask for all heads, but the masks of the heads differ.")
    return masks[:, 0]
