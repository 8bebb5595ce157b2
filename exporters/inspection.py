"""What an exported artifact or any ONNX file is: the facts that ``osa inspect`` prints."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from osa_runtime.artifact import Artifact, Manifest, TensorSpec
from osa_runtime.errors import ArtifactError, InputError
from osa_runtime.exporters.onnx_reading import external_files, read_onnx, readable_errors
from osa_runtime.exporters.onnx_tensors import count_parameters, input_specs, output_specs, weight_bytes
from osa_runtime.exporters.operators import FunctionFacts, count_operators, function_facts
from osa_runtime.exporters.placement import Placement, place
from osa_runtime.exporters.requirements import expand
from osa_runtime.file_kinds import NO_MODELS, FileKind, file_kind
from osa_runtime.recognition import not_an_artifact
from osa_runtime.runtime.kernels import check_providers, list_kernels


@dataclass(frozen=True)
class GraphFacts:
    """``operators`` counts the main graph with the bodies of its If and Loop nodes, ``expanded`` the whole model."""

    ir_version: int
    opsets: dict[str, int]
    producer: str
    functions: tuple[FunctionFacts, ...]
    operators: dict[str, int]
    expanded: dict[str, int]
    weight_bytes: int


@dataclass(frozen=True)
class Inspection:
    """The facts about one model. ``graph`` and ``placements`` exist for ONNX, ``manifest`` for exported folders."""

    path: str
    format: str
    size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: int
    graph: GraphFacts | None
    placements: tuple[Placement, ...]
    manifest: dict[str, Any] | None
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def inspect_artifact(path: str | Path, providers: Sequence[str] = ("cpu", "cuda")) -> Inspection:
    """Look into an exported folder or a bare .onnx file; nothing is run."""
    check_providers(providers)
    path = Path(path)
    if not path.exists() or (path.is_file() and file_kind(path) in NO_MODELS):
        raise not_an_artifact(path)
    if path.is_file() and file_kind(path) in (FileKind.TORCHSCRIPT, FileKind.PT2):
        raise InputError(f"{path} is {file_kind(path).value}; inspect the folder that it was exported to.")
    artifact = Artifact.open(path) if path.is_dir() else None
    if artifact is not None and artifact.manifest.format != "onnx":
        return _from_manifest(artifact)
    return _from_onnx(artifact.model_path if artifact else path, artifact, providers)


def onnx_file(path: str | Path) -> Path:
    """The model file of an ONNX artifact, or the path itself where it is a file."""
    path = Path(path)
    if not path.is_dir():
        return path
    artifact = Artifact.open(path)
    if artifact.manifest.format != "onnx":
        raise InputError(
            f"{path} holds a {artifact.manifest.format} model; only the graph of an ONNX model can be drawn."
        )
    return artifact.model_path


def _from_manifest(artifact: Artifact) -> Inspection:
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
    )


def _from_onnx(path: Path, artifact: Artifact | None, providers: Sequence[str]) -> Inspection:
    damage = _damage(artifact) if artifact else ()
    with _blaming(damage):
        model = read_onnx(path)
    with _blaming(damage), readable_errors(path):
        expanded = expand(model)
        cpu = list_kernels("cpu")
        lists = (cpu if name == "cpu" else list_kernels(name) for name in dict.fromkeys(providers))
        placements = tuple(place(expanded, kernels, cpu) for kernels in lists)
    manifest: Manifest | None = artifact.manifest if artifact else None
    return Inspection(
        path=str(artifact.folder if artifact else path),
        format="onnx",
        size=sum(file.stat().st_size for file in (path, *external_files(model, path))),
        inputs=input_specs(model),
        outputs=output_specs(model),
        parameters=manifest.parameters if manifest else count_parameters(model),
        graph=_graph_facts(model, expanded),
        placements=placements,
        manifest=asdict(manifest) if manifest else None,
        warnings=damage,
    )


def _graph_facts(model: onnx.ModelProto, expanded: onnx.ModelProto) -> GraphFacts:
    return GraphFacts(
        ir_version=model.ir_version,
        opsets={entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        functions=function_facts(model),
        operators=_sorted(count_operators(model.graph.node)),
        expanded=_sorted(count_operators(expanded.graph.node)),
        weight_bytes=weight_bytes(model),
    )


@contextlib.contextmanager
def _blaming(damage: tuple[str, ...]) -> Iterator[None]:
    """A file that was changed after the export is the reason for whatever is wrong with it."""
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


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
