"""A description of an exported artifact or any ONNX file, which ``osa inspect`` prints."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from osa_runtime.artifact import Artifact
from osa_runtime.errors import ArtifactError, InputError
from osa_runtime.inspection.kernel_coverage import KernelCoverage, expand, place
from osa_runtime.inspection.suitability import (
    Suitability,
    graph_of,
    graph_of_manifest,
    judge_target,
    undefined_operators,
)
from osa_runtime.interface import TensorSpec
from osa_runtime.manifest import Manifest
from osa_runtime.onnx_files import (
    count_parameters,
    input_specs,
    output_specs,
    read_onnx,
    readable_errors,
    weight_bytes,
    weight_files,
    with_inner,
)
from osa_runtime.recognition import NO_MODELS, FileKind, file_kind, not_an_artifact
from osa_runtime.runtime.kernels import check_providers, list_kernels
from osa_runtime.targets import target_named


@dataclass(frozen=True)
class GraphSummary:
    """Facts of a graph: ``operators`` of the main graph with If and Loop bodies, ``expanded`` of the whole model."""

    ir_version: int
    opsets: dict[str, int]
    producer: str
    functions: tuple[FunctionSummary, ...]
    operators: dict[str, int]
    expanded: dict[str, int]
    weight_bytes: int


@dataclass(frozen=True)
class Inspection:
    """The description of one model. ``graph`` and ``placements`` exist for ONNX, ``manifest`` for exported folders."""

    path: str
    format: str
    size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: int
    graph: GraphSummary | None
    placements: tuple[KernelCoverage, ...]
    manifest: dict[str, Any] | None
    warnings: tuple[str, ...] = ()
    targets: tuple[Suitability, ...] = ()


def inspect_artifact(
    path: str | Path, providers: Sequence[str] = ("cpu", "cuda"), targets: Sequence[str] = ()
) -> Inspection:
    """Look into an exported folder or a bare .onnx file; nothing is run. ``targets`` are names of ``targets.py``."""
    check_providers(providers)
    for name in targets:
        target_named(name)
    path = Path(path)
    if not path.exists() or (path.is_file() and file_kind(path) in NO_MODELS):
        raise not_an_artifact(path)
    if path.is_file() and file_kind(path) in (FileKind.TORCHSCRIPT, FileKind.PT2):
        raise InputError(f"{path} is {file_kind(path).value}; inspect the folder that it was exported to.")
    artifact = Artifact.open(path) if path.is_dir() else None
    if artifact is not None and artifact.manifest.format != "onnx":
        return _from_manifest(artifact, targets)
    return _from_onnx(artifact.model_path if artifact else path, artifact, providers, targets)


def onnx_file(path: str | Path) -> Path:
    """The model file of an ONNX artifact, or the path itself if it is a file."""
    path = Path(path)
    if not path.is_dir():
        return path
    artifact = Artifact.open(path)
    if artifact.manifest.format != "onnx":
        raise InputError(
            f"{path} holds a {artifact.manifest.format} model; only the graph of an ONNX model can be drawn."
        )
    return artifact.model_path


def _from_manifest(artifact: Artifact, targets: Sequence[str]) -> Inspection:
    manifest = artifact.manifest
    return Inspection(
        path=str(artifact.folder),
        format=manifest.format,
        size=artifact.model_path.stat().st_size,
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        parameters=manifest.parameters,
        graph=None,
        placements=(),
        manifest=asdict(manifest),
        warnings=_damage(artifact),
        targets=tuple(judge_target(name, graph_of_manifest(manifest)) for name in targets),
    )


def _from_onnx(path: Path, artifact: Artifact | None, providers: Sequence[str], targets: Sequence[str]) -> Inspection:
    damage = _damage(artifact) if artifact else ()
    with _reporting_damage(damage):
        model = read_onnx(path)
    with _reporting_damage(damage), readable_errors(path):
        expanded = expand(model)
        cpu = list_kernels("cpu")
        lists = (cpu if name == "cpu" else list_kernels(name) for name in dict.fromkeys(providers))
        placements = tuple(place(expanded, kernels, cpu) for kernels in lists)
    manifest: Manifest | None = artifact.manifest if artifact else None
    return Inspection(
        path=str(artifact.folder if artifact else path),
        format="onnx",
        size=sum(file.stat().st_size for file in (path, *weight_files(path))),
        inputs=input_specs(model),
        outputs=output_specs(model),
        parameters=manifest.parameters if manifest else count_parameters(model),
        graph=_summarise(model, expanded),
        placements=placements,
        manifest=asdict(manifest) if manifest else None,
        warnings=(*damage, *_lost_functions(model), *_in_other_runtimes(model)),
        targets=tuple(judge_target(name, graph_of(model, expanded)) for name in targets),
    )


def _summarise(model: onnx.ModelProto, expanded: onnx.ModelProto) -> GraphSummary:
    return GraphSummary(
        ir_version=model.ir_version,
        opsets={entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        functions=function_summaries(model),
        operators=_sorted(count_operators(model.graph.node)),
        expanded=_sorted(count_operators(expanded.graph.node)),
        weight_bytes=weight_bytes(model),
    )


@contextlib.contextmanager
def _reporting_damage(damage: tuple[str, ...]) -> Iterator[None]:
    """Report errors as damage if a file was changed after the export."""
    try:
        yield
    except ArtifactError as error:
        if not damage:
            raise
        raise ArtifactError(f"{damage[0]} It can no longer be read; copy or export it again.") from error


def _damage(artifact: Artifact) -> tuple[str, ...]:
    try:
        artifact.check_files()
    except ArtifactError as error:
        return (str(error),)
    return ()


def _in_other_runtimes(model: onnx.ModelProto) -> tuple[str, ...]:
    """Warn of wrong answers elsewhere: a graph in standard operators alone may be meant for any runtime."""
    control = sorted({"If", "Loop"} & set(count_operators(model.graph.node)))
    if model.functions or not control:
        return ()
    warning = (
        f"OpenVINO returns wrong values for a graph with {' and '.join(control)} where sizes are dynamic; for it, "
        "export with target='openvino'."
    )
    return (warning,)


def _lost_functions(model: onnx.ModelProto) -> tuple[str, ...]:
    """Warn of a file whose functions were dropped by a tool, as onnx's version converter does."""
    lost = undefined_operators(model)
    if not lost:
        return ()
    warning = (
        f"{', '.join(lost)} has no definition in this file, so that no runtime can run it: a tool in between has "
        "dropped the model's functions. Give that tool a model that was exported with functions='inline'."
    )
    return (warning,)


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


FunctionKey = tuple[str, str]  # domain and name


@dataclass(frozen=True)
class FunctionSummary:
    """Facts of a function. ``in_graph`` counts the calls in the main graph, ``calls`` all, also in other functions."""

    domain: str
    name: str
    summary: str
    in_graph: int
    calls: int


def count_operators(nodes: Iterable[onnx.NodeProto]) -> Counter[str]:
    """Nodes by operator, with the bodies of If and Loop; operators of other domains carry their domain."""
    counts: Counter[str] = Counter()
    for (domain, name), number in _count(nodes).items():
        counts[f"{domain}::{name}" if domain not in ("", "ai.onnx") else name] += number
    return counts


def function_summaries(model: onnx.ModelProto) -> tuple[FunctionSummary, ...]:
    """The functions of a model, those that the main graph calls first."""
    inside = {(f.domain, f.name): _count(f.node) for f in model.functions}
    in_graph = _count(model.graph.node)
    calls = _all_calls(in_graph, inside)
    found = [
        FunctionSummary(f.domain, f.name, _summary(f), in_graph[f.domain, f.name], calls[f.domain, f.name])
        for f in model.functions
    ]
    return tuple(sorted(found, key=lambda one: (-one.in_graph, -one.calls, one.name)))


def _count(nodes: Iterable[onnx.NodeProto]) -> Counter[FunctionKey]:
    return Counter((node.domain, node.op_type) for node in with_inner(nodes))


def _all_calls(in_graph: Counter[FunctionKey], inside: dict[FunctionKey, Counter[FunctionKey]]) -> Counter[FunctionKey]:
    """Every call that the inlined model would hold; ONNX forbids recursion, so this ends."""
    total: Counter[FunctionKey] = Counter()
    waiting = Counter({key: number for key, number in in_graph.items() if key in inside})
    while waiting:
        total += waiting
        called: Counter[FunctionKey] = Counter()
        for key, number in waiting.items():
            for callee, times in inside[key].items():
                if callee in inside:
                    called[callee] += number * times
        waiting = called
    return total


def _summary(function: onnx.FunctionProto) -> str:
    lines = function.doc_string.strip().splitlines()
    return lines[0].strip() if lines else ""
