"""The ONNX file of a page: the model for one picture, with the attention matrices of each layer as further outputs.

A matrix is what the attention makes of the identity: exp(S)·I. So whatever computes exp(S)·V in the graph computes it
once more with the identity for V, and shares everything that does not depend on V.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from osa_runtime.artifact import Artifact
from osa_runtime.errors import ArtifactError, RunError
from osa_runtime.inspection.kernel_coverage import expand
from osa_runtime.inspection.suitability import graph_of, judge_target
from osa_runtime.manifest import AttentionCall
from osa_runtime.onnx_files import between, makers, readable_errors, reads, renamed
from osa_runtime.onnx_layers import with_projections
from osa_runtime.parity.tolerances import relative_tolerance
from osa_runtime.runtime.session import load
from osa_runtime.sample_inputs import sample_inputs, usual_sizes

Array = NDArray[np.float32]


@dataclass(frozen=True)
class AttentionOutput:
    """An output of the graph with the matrices of one layer, (1, heads, tokens, tokens)."""

    layer: str
    output: str
    heads: int
    tokens: int


@dataclass(frozen=True)
class WebGraph:
    """``objections`` are the reasons for which WebGPU does not take it; WASM takes all."""

    model: onnx.ModelProto
    attentions: tuple[AttentionOutput, ...]
    objections: tuple[str, ...]


def web_graph(artifact: Artifact) -> WebGraph:
    """The graph for a page, after it has returned the artifact's own answers here."""
    with readable_errors(artifact.model_path):
        model, calls = with_projections(onnx.load(artifact.model_path), artifact.manifest.attentions)
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 1
        feeds = sample_inputs(artifact.manifest.interface, usual_sizes(artifact.manifest.interface), "pixels")
        inside = _run(model, feeds, [call.inputs[0] for call in calls])
        attentions = tuple(_add_matrices(model, call, inside[call.inputs[0]].shape) for call in calls)
        _check(artifact, model, calls, [attention.output for attention in attentions], feeds)
        needs = graph_of(model, expand(model))
    wrong = judge_target("ort-web", needs).objections
    if wrong:
        raise ArtifactError(f"{artifact.folder} does not run in ONNX Runtime Web: {'; '.join(wrong)}. Export it again.")
    return WebGraph(model, attentions, judge_target("webgpu", needs).objections)


def _add_matrices(model: onnx.ModelProto, call: AttentionCall, queries: tuple[int, ...]) -> AttentionOutput:
    """Repeat what depends on V, with the identity for it; ``queries`` is the shape of Q."""
    _, heads, tokens, _ = queries
    nodes = list(model.graph.node)
    identity, output = f"identity.{heads}x{tokens}", f"{call.name}.matrices"
    if identity not in {tensor.name for tensor in model.graph.initializer}:
        eye = np.broadcast_to(np.eye(tokens, dtype=np.float32), (1, heads, tokens, tokens))
        model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(eye), identity))
    names = {call.inputs[2]: identity}
    for index in sorted(between(nodes, makers(nodes), call.inputs, [call.output])):
        if names.keys() & set(reads(nodes[index])):
            node = renamed(nodes[index], names)
            names |= {name: f"{name}.of-identity" for name in node.output if name}
            names |= {call.output: output} if call.output in node.output else {}
            node.output[:] = [names.get(name, name) for name in node.output]
            node.name = f"{node.name}.of-identity"
            model.graph.node.append(node)
    if output not in names.values():
        raise ArtifactError(f"The graph does not compute {call.output} from {call.inputs[2]}; export the model again.")
    model.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, [1, heads, tokens, tokens]))
    return AttentionOutput(call.name, output, heads, tokens)


def _run(model: onnx.ModelProto, feeds: dict[str, Array], wanted: Sequence[str]) -> dict[str, Array]:
    """The outputs of the graph, and the values ``wanted`` inside it."""
    seen = copy.deepcopy(model)
    present = {value.name for value in model.graph.output}
    seen.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in dict.fromkeys(wanted)
        if name not in present
    )
    with tempfile.TemporaryDirectory(prefix="osa-web-") as scratch:
        onnx.save(seen, path := Path(scratch) / "model.onnx")
        with load(path, threads=1) as session:
            return session.run(feeds)


def _check(
    artifact: Artifact,
    model: onnx.ModelProto,
    calls: Sequence[AttentionCall],
    outputs: Sequence[str],
    feeds: dict[str, Array],
) -> None:
    """Compare the answer with the artifact's own, and each A·V with what the layer computed."""
    manifest = artifact.manifest
    with load(artifact.folder, threads=1, check_hash=False) as session:
        expected = session.run(feeds, check_finite=True)
    tolerance = relative_tolerance("onnx", "fp32", manifest.depth or 0)
    wanted = [name for call in calls for name in (call.inputs[2], call.output)]
    found = _run(model, feeds, wanted)
    for name, answer in expected.items():
        _check_close(name, found[name], answer, tolerance)
    for call, output in zip(calls, outputs, strict=True):
        _check_close(output, found[output] @ found[call.inputs[2]], found[call.output], tolerance)


def _check_close(name: str, found: Array, expected: Array, tolerance: float) -> None:
    distance = float(np.abs(found - expected).max() / max(np.abs(expected).max(), np.finfo(np.float32).tiny))
    if not distance <= tolerance:
        raise RunError(
            f"The graph for the page returns another {name} than the artifact: {distance:.1e} away, expected at most "
            f"{tolerance:.1e}. Export the model again, or report it."
        )
