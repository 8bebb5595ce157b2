"""Nodes of a model for which a provider has no kernel, and what ONNX Runtime does about them."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx.inliner
import onnx.shape_inference

from osa_runtime.onnx_files import bodies
from osa_runtime.runtime.kernels import KernelList, KernelNeed

ON_CPU = "runs on the CPU, its data copied there and back"
IN_FLOAT32 = "computed in float32, cast there and back"
NOWHERE = "no provider runs it: a session will not start"
UNKNOWN = "unknown: the list of kernels does not mention it"


@dataclass(frozen=True)
class Gap:
    """Nodes of one operator and type for which a provider has no kernel, or for which it is unknown."""

    operator: str
    types: tuple[str, ...]
    consequence: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class KernelCoverage:
    """The nodes of the expanded model that a provider runs. ``nodes`` counts all that need a kernel."""

    provider: str
    source: str
    nodes: int
    gaps: tuple[Gap, ...]

    @property
    def missing(self) -> int:
        return sum(len(gap.nodes) for gap in self.gaps if gap.consequence != UNKNOWN)


def place(expanded: onnx.ModelProto, kernels: KernelList, cpu: KernelList) -> KernelCoverage:
    """Find the gaps; ``expanded`` has no functions left, and ``cpu`` is ONNX Runtime's fallback."""
    judge = _Judge(kernels, cpu, {entry.domain: entry.version for entry in expanded.opset_import})
    needed = requirements(expanded)
    if not kernels.kernels:  # nothing is known about this provider, for the reason in its source
        return KernelCoverage(kernels.provider, kernels.source, len(needed), ())
    found: defaultdict[tuple[str, tuple[str, ...], str], list[str]] = defaultdict(list)
    for requirement in needed:
        for need, consequence in judge.gaps(requirement):
            found[_label(need), _types(need), consequence].append(requirement.name)
    gaps = (Gap(operator, types, consequence, tuple(nodes)) for (operator, types, consequence), nodes in found.items())
    return KernelCoverage(
        kernels.provider, kernels.source, len(needed), tuple(sorted(gaps, key=lambda gap: gap.operator))
    )


class _Judge:
    def __init__(self, kernels: KernelList, cpu: KernelList, opsets: Mapping[str, int]) -> None:
        self.kernels, self.cpu, self.opsets = kernels, cpu, opsets

    def gaps(self, requirement: Requirement) -> Iterator[tuple[KernelNeed, str]]:
        """The requirements that are not met, or those of the operator's own definition if ONNX Runtime would use it."""
        need = requirement.need
        served, on_cpu = self.kernels.serves(need), self.cpu.serves(need)
        if served or (served is None and on_cpu is None and self._has_definition(requirement)):
            return
        if on_cpu is False and self.cpu.serves(need.in_float32()):
            yield need, IN_FLOAT32
        elif on_cpu is False and self._has_definition(requirement):
            for inner in definition(requirement, self.opsets):
                yield from self.gaps(inner)
        elif served is None:
            yield need, UNKNOWN
        else:
            yield need, ON_CPU if on_cpu else NOWHERE if on_cpu is False else UNKNOWN

    def _has_definition(self, requirement: Requirement) -> bool:
        return bool(definition(requirement, self.opsets))


def _label(need: KernelNeed) -> str:
    return f"{need.domain}::{need.operator}" if need.domain not in ("", "ai.onnx") else need.operator


def _types(need: KernelNeed) -> tuple[str, ...]:
    names = {name.removeprefix("tensor(").removesuffix(")") for used in need.types.values() for name in used}
    return tuple(sorted(names))


Types = Mapping[str, str]

OWN_DEFINITION = "osa.definition"  # a domain that no model uses, for an operator's own definition


@dataclass(frozen=True)
class Requirement:
    """One node of the expanded model, and the kernel that it needs."""

    name: str
    need: KernelNeed
    node: onnx.NodeProto = field(repr=False, compare=False)
    inputs: tuple[str, ...] = ()


def expand(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its local functions inlined and all types inferred."""
    return onnx.shape_inference.infer_shapes(onnx.inliner.inline_local_functions(model))


def requirements(expanded: onnx.ModelProto) -> tuple[Requirement, ...]:
    """One entry per node, except constants, which runtimes turn into weights when they load a model."""
    opsets = {entry.domain: entry.version for entry in expanded.opset_import}
    return tuple(
        _requirement(node, types, opsets) for node, types in _nodes(expanded.graph, {}) if node.op_type != "Constant"
    )


def definition(requirement: Requirement, opsets: Mapping[str, int]) -> tuple[Requirement, ...]:
    """The requirements of the operator's definition, if ONNX has one: a runtime without a kernel runs that."""
    need = requirement.need
    body = _body(requirement, opsets)
    if body is None:
        return ()
    node = copy.deepcopy(requirement.node)
    node.domain = body.domain = OWN_DEFINITION
    named = [(name, t) for name, t in zip(node.input, requirement.inputs, strict=True) if name]
    inputs = [onnx.helper.make_tensor_value_info(name, _element(t), None) for name, t in dict(named).items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = onnx.helper.make_graph([node], need.operator, inputs, outputs)
    imports = [onnx.helper.make_opsetid(OWN_DEFINITION, 1), *body.opset_import]
    return requirements(expand(onnx.helper.make_model(graph, functions=[body], opset_imports=imports)))


def _body(requirement: Requirement, opsets: Mapping[str, int]) -> onnx.FunctionProto | None:
    need, opset = requirement.need, opsets.get(requirement.need.domain, 1)
    schema = _schema(need.operator, opset, need.domain)
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        return None
    if schema.has_function:
        return copy.deepcopy(schema.function_body)
    if not all(requirement.inputs):
        return None  # such a definition depends on the types, and one is unknown
    types = [onnx.helper.make_tensor_type_proto(_element(t), None).SerializeToString() for t in requirement.inputs]
    version = max(v for v in schema.context_dependent_function_opset_versions if v <= max(opset, need.version))
    serialized = requirement.node.SerializeToString()
    found = schema.get_context_dependent_function_with_opset_version(version, serialized, types)
    return onnx.FunctionProto.FromString(found)


def _nodes(graph: onnx.GraphProto, outer: Types) -> Iterator[tuple[onnx.NodeProto, Types]]:
    types = dict(outer)
    for value in (*graph.input, *graph.output, *graph.value_info):
        types[value.name] = _type(value.type)
    types |= {tensor.name: _tensor_type(tensor.data_type) for tensor in graph.initializer}
    for node in graph.node:
        yield node, types
        for body in bodies(node):
            yield from _nodes(body, types)


def _requirement(node: onnx.NodeProto, types: Types, opsets: Mapping[str, int]) -> Requirement:
    schema = _schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    used: dict[str, set[str]] = {}
    if schema is not None:
        for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
            for index, name in enumerate(names if formals else ()):
                formal = formals[min(index, len(formals) - 1)]  # the last one may stand for many
                for key in (formal.type_str, formal.name) if types.get(name) else ():
                    used.setdefault(key, set()).add(types[name])
    version = schema.since_version if schema is not None else opsets.get(node.domain, 1)
    need = KernelNeed(node.domain, node.op_type, version, {key: frozenset(value) for key, value in used.items()})
    inputs = tuple(types.get(name, "") for name in node.input)
    return Requirement(node.name or (node.output[0] if node.output else ""), need, node, inputs)


def _schema(operator: str, opset: int, domain: str) -> Any | None:
    try:
        return onnx.defs.get_schema(operator, opset, domain)
    except onnx.defs.SchemaError:
        return None  # an operator of another vendor: only its name can be compared


def _type(proto: onnx.TypeProto) -> str:
    """The type, such as ``tensor(float)``; empty if it is unknown or not a tensor."""
    return _tensor_type(proto.tensor_type.elem_type) if proto.HasField("tensor_type") else ""


def _tensor_type(element: int) -> str:
    return f"tensor({onnx.TensorProto.DataType.Name(element).lower()})" if element else ""


def _element(name: str) -> int:
    return onnx.TensorProto.DataType.Value(name.removeprefix("tensor(").removesuffix(")").upper()) if name else 0
