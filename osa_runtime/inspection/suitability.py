"""The judgement whether a model runs in a runtime that is named as a target, and why not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx

from osa_runtime.inspection.kernel_coverage import requirements
from osa_runtime.interface import TensorSpec
from osa_runtime.manifest import Manifest
from osa_runtime.onnx_files import input_specs, with_inner
from osa_runtime.targets import TARGETS, GraphNeeds, target_named

# Of a model; the ai.osa functions have three of them, which are nothing to object to.
MAY_HIDE_NAN = frozenset().union(*(target.hides_nan for target in TARGETS.values())) - {"Max", "Min", "ReduceMax"}
STANDARD = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")


@dataclass(frozen=True)
class Suitability:
    target: str
    runtime: str
    tried: str
    advice: str
    objections: tuple[str, ...]


def judge_target(name: str, needs: GraphNeeds) -> Suitability:
    target = target_named(name)
    return Suitability(target.name, target.runtime, target.tried, target.advice, tuple(target.objections(needs)))


def graph_of(model: onnx.ModelProto, expanded: onnx.ModelProto) -> GraphNeeds:
    """The needs of an ONNX model; ``expanded`` has its functions inlined and its types inferred."""
    nodes = list(with_inner(expanded.graph.node))
    control = sorted({node.op_type for node in nodes} & {"If", "Loop", "Scan"})
    guarded = {node.input[0] for node in nodes if node.op_type == "IsNaN"}
    bare = {node.op_type for node in nodes if node.op_type in MAY_HIDE_NAN and node.input[0] not in guarded}
    typed = [(one.name, one.need.operator, str(one.need.types.values())) for one in requirements(expanded)]
    return GraphNeeds(
        "onnx",
        functions=tuple(function.name for function in model.functions),
        undefined=undefined_operators(model),
        control_flow=tuple(control),
        float64=tuple(name for name, _, types in typed if "double" in types),
        float16=tuple(name for name, operator, types in typed if operator == "Gemm" and "float16" in types),
        dynamic_axes=dynamic_axes(input_specs(model)),
        may_hide_nan=tuple(sorted(bare)),
        opset=next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None),
        ir_version=model.ir_version,
    )


def graph_of_manifest(manifest: Manifest) -> GraphNeeds:
    """The needs of a program of torch, as far as its manifest has them."""
    loops = manifest.osa is not None and not manifest.osa.evaluation.is_fixed
    return GraphNeeds(
        manifest.format,
        control_flow=("while_loop",) if loops else (),
        float64=("orthogonal attention",) if manifest.osa is not None and manifest.osa.core != "float32" else (),
        dynamic_axes=dynamic_axes(manifest.inputs),
    )


def dynamic_axes(inputs: Iterable[TensorSpec]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(axis for spec in inputs for axis in spec.shape if isinstance(axis, str)))


def undefined_operators(model: onnx.ModelProto) -> tuple[str, ...]:
    """Operators of other domains that no function of the file defines: some tools drop functions without a word."""
    defined = {(function.domain, function.name) for function in model.functions}
    nodes = [node for part in (model.graph, *model.functions) for node in with_inner(part.node)]
    lost = {(node.domain, node.op_type) for node in nodes if node.domain not in STANDARD} - defined
    return tuple(sorted(f"{domain}.{name}" for domain, name in lost))
