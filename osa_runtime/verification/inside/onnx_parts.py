"""The parts of an ONNX model, cut out of its graph and run in ONNX Runtime.

Nodes are named ``module.path/Operator`` by the exporter, so the nodes of a module are known. The nodes of an
inlined call of orthogonal attention have no such names; they are those between the call's inputs and its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
from onnx import TensorProto

from osa_runtime.errors import RunError
from osa_runtime.interface import TensorSpec
from osa_runtime.manifest import AttentionCall
from osa_runtime.onnx_files import input_specs, read_onnx, readable_errors, reads
from osa_runtime.onnx_functions import expanded
from osa_runtime.onnx_layers import ATTENTION, DOMAIN, LAYER, is_layer, with_linear_apart
from osa_runtime.runtime.onnx_session import EXTERNAL_DATA_FOLDER, error_text
from osa_runtime.runtime.session import Session
from osa_runtime.verification.inside.model_parts import Array, Calls, Core, Glue, ModelParts, Written
from osa_runtime.verification.inside.onnx_slicing import GraphIndex, LayerNode

MOST_KEPT, MOST_KEPT_WEIGHTS = 32, 2**20  # sessions of parts, and the weights of a model of which more than one is kept
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class Boundary:
    """The values at which a unit is cut out: its tensor, its mask, its result."""

    x: str
    mask: str | None
    out: str


class OnnxParts(ModelParts):
    """The parts of an ONNX model. Without ``calls``, the manifest's attentions, only calls that are nodes are known."""

    def __init__(self, path: Path, calls: Sequence[AttentionCall] = (), threads: int | None = None) -> None:
        self._folder, self._threads = path.parent, threads
        with readable_errors(path):
            self._index = GraphIndex(with_linear_apart(expanded(read_onnx(path))))
        self._specs = input_specs(self._index.model)
        present = {*self._index.maker, *self._index.inputs, *self._index.weights}
        self._calls = _labelled(
            call
            for call in _nodes_of_attention(self._index) or calls
            if {call.output, *call.inputs[:3], *call.inputs[4:]} <= present
        )
        self._layers: dict[str, LayerNode] = {}
        self._boundaries = _boundaries(self._index, self._calls)
        self.units = tuple(self._boundaries)
        self.attentions = tuple(sorted(self._calls, key=lambda name: self._index.maker[self._calls[name].output]))
        self._sessions: dict[tuple[tuple[str, ...], tuple[str, ...]], Any] = {}

    @classmethod
    def of(cls, session: Session, threads: int | None) -> Self:
        return cls(session.path, session.manifest.attentions if session.manifest is not None else (), threads)

    def outputs_of(self, units: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        values = self._run({}, feeds, [self._boundaries[unit].out for unit in units])
        return dict(zip(units, values, strict=True))

    def inputs_of(self, units: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        names = {unit: self._boundaries[unit].x for unit in units}
        made = [name for name in dict.fromkeys(names.values()) if name not in self._index.inputs]
        values = dict(zip(made, self._run({}, feeds, made), strict=True)) if made else {}
        return {unit: values[name] if name in values else feeds[name] for unit, name in names.items()}

    def call(self, unit: str, inputs: Sequence[Array], feeds: Mapping[str, Array] | None = None) -> Array:
        known, rest = self._known(unit, inputs, feeds)
        return self._run(known, rest, [self._boundaries[unit].out])[0]

    def _known(
        self, unit: str, inputs: Sequence[Array], feeds: Mapping[str, Array] | None
    ) -> tuple[dict[str, Array], Mapping[str, Array]]:
        """The values at the boundary of a unit, and those of the graph's inputs."""
        at, rest = self._boundaries[unit], feeds or self._placeholders(inputs[0])
        known = {at.x: inputs[0]}
        if at.mask is None:
            return known, rest
        if len(inputs) < 2:
            raise RunError(f"{unit} takes a mask ({at.mask}), but none was given.")
        if at.mask in self._index.inputs:
            return known | {at.mask: inputs[1]}, rest
        shape = self._run({}, rest, [at.mask])[0].shape
        if np.prod(shape) != inputs[1].size:
            raise RunError(f"{unit} takes a mask of the shape {shape} ({at.mask}), expected {inputs[1].shape}.")
        return known | {at.mask: inputs[1].reshape(shape)}, rest

    def between(self, calls: Calls, feeds: Mapping[str, Array]) -> Glue:
        outputs = [value.name for value in self._index.model.graph.output]
        at = {unit: self._boundaries[unit] for unit in calls}
        masks = {unit: boundary.mask for unit, boundary in at.items() if boundary.mask is not None}
        wanted = list(dict.fromkeys([*(boundary.x for boundary in at.values()), *masks.values(), *outputs]))
        session = self.start(self._index.glue(self._cuts(calls), wanted))
        values = dict(zip(wanted, self.answers(session, self._given(calls) | dict(feeds), None), strict=True))
        inputs = {unit: values[boundary.x] for unit, boundary in at.items()}
        found = {unit: values[mask] for unit, mask in masks.items()}
        return Glue(inputs, tuple(values[name] for name in outputs), found)

    def _cuts(self, calls: Calls) -> dict[str, bool]:
        """The values at which the units are cut out; True for those that a unit makes."""
        at = [self._boundaries[unit] for unit in calls]
        taken = {boundary.x: False for boundary in at if boundary.x not in self._index.inputs}
        return taken | {boundary.out: True for boundary in at}

    def _given(self, calls: Calls) -> dict[str, Array]:
        taken = {f"given/{self._boundaries[unit].x}": inputs[0] for unit, (inputs, _) in calls.items()}
        return taken | {f"given/{self._boundaries[unit].out}": out for unit, (_, out) in calls.items()}

    def overflow(self, unit: str, inputs: Sequence[Array]) -> str | None:
        """Look at values inside: ONNX Runtime's CPU provider computes in float32 and rounds only requested outputs."""
        known, rest = self._known(unit, inputs, None)
        for name, value in self._overflows(known, rest, self._boundaries[unit].out):
            broken = int(np.count_nonzero(~np.isfinite(value)))
            return f"{name} is beyond the range of fp16: {broken} of {value.size} values are NaN or Inf"
        return None

    def _overflows(
        self, known: Mapping[str, Array], feeds: Mapping[str, Array], out: str
    ) -> Iterator[tuple[str, Array]]:
        """The values that are not finite but computed from finite ones."""
        makers = sorted(self._index.between(set(known), [out]))
        names = [name for i in makers for name in self._index.nodes[i].output]
        halves = [name for name in names if self._index.types.get(name) == TensorProto.FLOAT16]
        for name, value in zip(halves, self._run(known, feeds, halves), strict=True):
            odd = value[~np.isfinite(value)]
            if odd.size and not self._masks_scores(name, odd) and self._reads_numbers(name, known, feeds):
                yield name, value

    def _masks_scores(self, name: str, odd: Array) -> bool:
        """True for -Inf before a softmax, which gives a token no weight."""
        readers = [node.op_type for node in self._index.nodes if name in node.input]
        return bool((odd == -np.inf).all()) and set(readers) == {"Softmax"}

    def _reads_numbers(self, name: str, known: Mapping[str, Array], feeds: Mapping[str, Array]) -> bool:
        """True if all inputs of the node are finite: otherwise the fault came earlier, or is intended."""
        read = set(reads(self._index.nodes[self._index.maker[name]]))
        floats = [one for one in read if self._index.types.get(one) in FLOATS]
        weights = [self._index.weights[one] for one in floats if one in self._index.weights]
        arrays = [onnx.numpy_helper.to_array(weight, str(self._folder)) for weight in weights]
        arrays += [known[one] for one in floats if one in known]
        made = [one for one in floats if one not in known and one not in self._index.weights]
        arrays += self._run(known, feeds, made) if made else []
        return all(bool(np.isfinite(array).all()) for array in arrays)

    def cores_of(self, attentions: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Core]:
        layers = {name: self._layer_core(name, feeds) for name in attentions if self._is_layer(name)}
        others = [name for name in attentions if name not in layers]
        found = self._cores_of_calls(others, feeds) if others else {}
        return {name: layers[name] if name in layers else found[name] for name in attentions}

    def _is_layer(self, name: str) -> bool:
        return is_layer(self._index.nodes[self._index.maker[self._calls[name].output]])

    def _layer(self, name: str) -> LayerNode:
        if name not in self._layers:
            if self._index.weight_count > MOST_KEPT_WEIGHTS:
                self._layers.clear()
            call = self._calls[name]
            node, element = self._index.nodes[self._index.maker[call.output]], self._index.types[call.inputs[0]]
            self._layers[name] = LayerNode(node, self._index.model, element, self.start)
        return self._layers[name]

    def _layer_core(self, name: str, feeds: Mapping[str, Array]) -> Core:
        names = self._calls[name].inputs
        made = [value for value in names if value in self._index.maker]
        values = dict(feeds) | (dict(zip(made, self._run({}, feeds, made), strict=True)) if made else {})
        for value in (set(names) & set(self._index.weights)) - set(values):
            values[value] = onnx.numpy_helper.to_array(self._index.weights[value], str(self._folder))
        x, weight, _, scale, *mask = (values[value] for value in names)
        return self._layer(name).core(x, weight, scale, mask[0] if mask else None)

    def _cores_of_calls(self, attentions: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Core]:
        wanted = [self._named(self._calls[name]) for name in attentions]
        counts = [self._calls[name].squarings for name in attentions]
        counts = [value if value in self._index.maker else None for value in counts]
        names = sorted({value for call in wanted for value in call.values()} | {value for value in counts if value})
        found = dict(zip(names, self._run({}, feeds, names), strict=True))
        return {
            name: Core(
                q=found[call["q"]],
                k=found[call["k"]],
                v=found[call["v"]],
                scale=found[call["scale"]] if "scale" in call else self._constant_scale(name),
                mask=found[call["mask"]] if "mask" in call else None,
                out=found[call["out"]],
                squarings=int(found[count]) if count else None,
            )
            for name, call, count in zip(attentions, wanted, counts, strict=True)
        }

    def apply_attention(self, attention: str, core: Core, v: Array) -> Array:
        if self._is_layer(attention):
            return self._layer(attention).applied(core, v)
        call = self._named(self._calls[attention])
        known = {call["q"]: core.q, call["k"]: core.k, call["v"]: v}
        if core.mask is not None and "mask" in call:
            known[call["mask"]] = core.mask
        if "scale" in call:
            known[call["scale"]] = core.scale
        return self._run(known, {}, [call["out"]])[0]

    def write_unit(self, unit: str, inputs: Sequence[Array], folder: Path, feeds: Mapping[str, Array]) -> Written:
        at = self._boundaries[unit]
        known, rest = self._known(unit, inputs, feeds)
        values = dict(rest) | known
        # Half precision may overflow inside and not show it: reproduce.py looks at these values, too.
        halves = self._index.types.get(at.out) == TensorProto.FLOAT16
        inside = [name for name, _ in self._overflows(known, rest, at.out) if name != at.out] if halves else []
        return self._write(self._index.slice(list(known), [at.out, *inside]), values, folder)

    def write_between(self, end: str | int, calls: Calls, feeds: Mapping[str, Array], folder: Path) -> Written:
        wanted = self._index.model.graph.output[end].name if isinstance(end, int) else self._boundaries[end].x
        return self._write(self._index.glue(self._cuts(calls), [wanted]), self._given(calls) | dict(feeds), folder)

    def _write(self, model: onnx.ModelProto, values: Mapping[str, Array], folder: Path) -> Written:
        onnx.external_data_helper.load_external_data_for_model(model, str(self._folder))
        onnx.save(model, folder / "unit.onnx")
        return Written("unit.onnx", {value.name: values[value.name] for value in model.graph.input})

    def close(self) -> None:
        self._sessions.clear()
        self._layers.clear()

    def _named(self, call: AttentionCall) -> dict[str, str]:
        """q, k, v, scale, mask and out by their names in the graph; a scale that is a constant is left out."""
        names = dict(zip(("q", "k", "v", "scale", "mask"), call.inputs, strict=False)) | {"out": call.output}
        if names["scale"] not in self._index.maker and names["scale"] not in self._index.inputs:
            del names["scale"]
        return names

    def _constant_scale(self, name: str) -> Array:
        call = self._calls[name]
        weight = self._index.weights.get(call.inputs[3])
        if weight is not None:
            return onnx.numpy_helper.to_array(weight, str(self._folder))
        return np.asarray(call.scale, np.float32)

    def _placeholders(self, x: Array) -> dict[str, Array]:
        axes = dict.fromkeys(axis for spec in self._specs for axis in spec.shape if isinstance(axis, str))
        sizes = dict(zip(axes, x.shape, strict=False))
        return {spec.name: _zeros(spec, sizes) for spec in self._specs}

    def _run(self, known: Mapping[str, Array], feeds: Mapping[str, Array], wanted: Sequence[str]) -> list[Array]:
        return self.answers(self._session(tuple(known), tuple(wanted)), dict(feeds) | dict(known), list(wanted))

    def values(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Values of the graph in one run of the whole model."""
        made = [name for name in names if name not in feeds]
        found = dict(feeds) | (dict(zip(made, self._run({}, feeds, made), strict=True)) if made else {})
        return [found[name] for name in names]

    def answers(self, session: Any, values: Mapping[str, Array], wanted: list[str] | None) -> list[Array]:
        needed = [value.name for value in session.get_inputs()]
        try:
            return list(session.run(wanted, {name: values.get(name) for name in needed}))
        except Exception as error:
            where = (wanted or [value.name for value in session.get_outputs()])[0]
            raise RunError(f"ONNX Runtime failed in a part of the model ({where}): {error_text(error)}") from error

    def _session(self, known: tuple[str, ...], wanted: tuple[str, ...]) -> Any:
        """The same part runs for many cases: sessions are kept, but only the last one of a large model."""
        if (known, wanted) not in self._sessions:
            if self._index.weight_count > MOST_KEPT_WEIGHTS or len(self._sessions) == MOST_KEPT:
                self._sessions.clear()
            self._sessions[known, wanted] = self.start(self._index.slice(known, list(wanted)))
        return self._sessions[known, wanted]

    def start(self, model: onnx.ModelProto) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = self._threads or 0
        # Without optimisation: ONNX Runtime moves 8-bit roundings, even to before a value that is read here.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.add_session_config_entry(EXTERNAL_DATA_FOLDER, str(self._folder))
        try:
            return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise RunError(f"ONNX Runtime cannot load a part of the model: {error_text(error)}") from error


def _zeros(spec: TensorSpec, sizes: Mapping[str, int]) -> Array:
    shape = [axis if isinstance(axis, int) else sizes.get(axis, 1) for axis in spec.shape]
    return np.zeros(shape, spec.dtype)


def _nodes_of_attention(index: GraphIndex) -> list[AttentionCall]:
    nodes = [node for node in index.nodes if node.domain == DOMAIN and node.op_type in (ATTENTION, LAYER)]
    return [AttentionCall(node.name.rpartition("/")[0], tuple(node.input), *node.output[:2]) for node in nodes]


def _labelled(calls: Iterable[AttentionCall]) -> dict[str, AttentionCall]:
    """Calls by the module that makes them; a module's second call has a number, and the model itself has no name."""
    found: dict[str, AttentionCall] = {}
    for call in calls:
        name = call.name or "(model)"
        count = sum(other.name == call.name for other in found.values())
        found[f"{name}#{count + 1}" if count else name] = call
    return found


def _boundaries(index: GraphIndex, calls: Mapping[str, AttentionCall]) -> dict[str, Boundary]:
    """Every module path whose nodes have one tensor (and perhaps a mask) going in and one coming out."""
    owner = [node.name.rpartition("/")[0] for node in index.nodes]
    for call in calls.values():
        for position in index.between(set(call.inputs), [call.output]):
            owner[position] = call.name
    found: dict[str, tuple[int, Boundary]] = {}
    nobodys = sum(1 << i for i, name in enumerate(owner) if not name)
    before, behind = index.reach()
    for path in dict.fromkeys(prefix for name in owner for prefix in _prefixes(name)):
        inside = {i for i, name in enumerate(owner) if name == path or name.startswith(f"{path}.")}
        # A node without a module's name between two nodes of the module is part of it.
        enclosed = nobodys & _union(before, inside) & _union(behind, inside)
        inside |= {i for i in range(len(owner)) if enclosed >> i & 1}
        boundary = _boundary(index, inside)
        if boundary is not None:
            found[path] = (max(inside), boundary)
    ordered = sorted(found.items(), key=lambda item: (item[1][0], -len(item[0])))
    return {path: boundary for path, (_, boundary) in ordered}


def _union(sets: Sequence[int], members: Iterable[int]) -> int:
    found = 0
    for member in members:
        found |= sets[member]
    return found


def _prefixes(path: str) -> list[str]:
    parts = path.split(".") if path else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _boundary(index: GraphIndex, inside: set[int]) -> Boundary | None:
    made = {name for i in inside for name in index.nodes[i].output}
    read_outside = {name for i, node in enumerate(index.nodes) if i not in inside for name in reads(node)}
    read_outside |= {value.name for value in index.model.graph.output}
    read = {name for i in inside for name in reads(index.nodes[i])} - made - index.constants
    out = [name for name in made & read_outside if index.types.get(name) in FLOATS]
    tensors = [name for name in read if index.types.get(name) in FLOATS]
    if any(index.nodes[i].op_type == "If" and index.nodes[i].input[0] in read for i in inside):
        return None  # a choice that is made elsewhere is neither its tensor nor its mask
    masks = _masks(index, read)
    if not tensors:  # an embedding of token ids
        tensors = [name for name in read if name in index.inputs and index.types.get(name) != TensorProto.BOOL]
    if len(out) != 1 or len(tensors) != 1 or masks is None or len(masks) > 1:
        return None
    return Boundary(tensors[0], next(iter(masks), None), out[0])


def _masks(index: GraphIndex, read: set[str]) -> set[str] | None:
    """The boolean that a unit reads; for several, the inputs that they come from, or None if that is not all."""
    booleans = [name for name in read if index.types.get(name) == TensorProto.BOOL]
    if len(booleans) == 1:
        return set(booleans)
    makers = index.between(set(), booleans)
    sources = {name for i in makers for name in reads(index.nodes[i])} | set(booleans)
    inputs = {name for name in sources if name in index.inputs}
    return inputs if all(index.types.get(name) == TensorProto.BOOL for name in inputs) else None
