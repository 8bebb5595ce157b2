"""The ONNX format: capture, name, attach the functions, check, write."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxscript.optimizer
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, InlinePass
from torch import nn

from osa_runtime.errors import ExportError
from osa_runtime.exporters.examples import Examples
from osa_runtime.exporters.functions import DOMAIN, VERSION, FunctionChoice, build_functions
from osa_runtime.exporters.manifest_entries import manifest_entry
from osa_runtime.exporters.onnx_capture import capture
from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.formats import FORMATS
from osa_runtime.manifest import AttentionCall, AttentionSettings
from osa_runtime.onnx_files import LARGEST_SINGLE_FILE
from osa_runtime.steps import Progress

IR_VERSION = 10


def export_onnx(
    module: nn.Module,
    examples: Examples,
    outputs: tuple[str, ...],
    settings: ExportSettings,
    folder: Path,
    progress: Progress,
) -> tuple[AttentionSettings | None, tuple[AttentionCall, ...]]:
    """Write ``model.onnx`` into the folder; returns the OSA settings and calls that the manifest records."""
    with progress.step("capture the graph"):
        model, choice = capture(module, examples, settings)
        model.ir_version = IR_VERSION
        # Before inlining: nodes that it merges afterwards would be missing from the list of calls.
        CommonSubexpressionEliminationPass()(model)
        rename(model, outputs)
        if choice is not None and choice.counted:
            _name_counts(model)
        attentions = _calls(model)
    with progress.step("attach the functions" if settings.functions == "keep" else "inline the functions"):
        if choice is not None:
            _attach(model, choice, settings)
            attentions = _with_remaining_counts(attentions, model)
    with progress.step("write the model"):
        path = folder / FORMATS["onnx"].file
        outside = settings.external_data or _weight_bytes(model) > LARGEST_SINGLE_FILE
        ir.save(model, path, external_data=f"{path.name}.data" if outside else None)
    with progress.step("check the model"):
        _check(path, choice, settings)
    return manifest_entry([] if choice is None else [choice.evaluation], settings.core), attentions


def _calls(model: ir.Model) -> tuple[AttentionCall, ...]:
    """The inputs and outputs of each call of orthogonal attention. Inlining keeps these names, but not the calls."""
    return tuple(_call(node) for node in model.graph if node.domain == DOMAIN)


def _call(node: ir.Node) -> AttentionCall:
    scale = node.inputs[3].const_value if node.inputs[3] is not None else None
    return AttentionCall(
        name=(node.name or "").rpartition("/")[0],
        inputs=tuple(str(value.name) for value in node.inputs if value is not None),
        output=str(node.outputs[0].name),
        squarings=node.outputs[1].name if len(node.outputs) > 1 else None,
        scale=None if scale is None else scale.numpy().astype(float).tolist(),
    )


def _name_counts(model: ir.Model) -> None:
    """Name the number of squarings of each call, so that it can be read in a runtime."""
    for node in model.graph:
        if node.domain == DOMAIN:
            node.resize_outputs(2)
            count = node.outputs[1]
            count.name, count.type, count.shape = (
                f"{node.name}.squarings",
                ir.TensorType(ir.DataType.INT64),
                ir.Shape([]),
            )


def _with_remaining_counts(calls: tuple[AttentionCall, ...], model: ir.Model) -> tuple[AttentionCall, ...]:
    """The calls without the counts that inlining dropped because nothing else depends on them."""
    present = {value.name for node in model.graph for value in node.outputs}
    return tuple(call if call.squarings in present else replace(call, squarings=None) for call in calls)


def _attach(model: ir.Model, choice: FunctionChoice, settings: ExportSettings) -> None:
    for proto in build_functions(choice, settings.opset):
        function = ir.serde.deserialize_function(proto)
        if proto.name != "SkewExponential":  # a library function that no model calls
            model.functions[function.identifier()] = function
    model.opset_imports[DOMAIN] = VERSION
    if settings.functions == "inline":
        InlinePass()(model)
        onnxscript.optimizer.optimize(model, num_iterations=2, onnx_shape_inference=False)
        model.opset_imports.pop(DOMAIN, None)


def _weight_bytes(model: ir.Model) -> int:
    tensors = (value.const_value for value in model.graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _check(path: Path, choice: FunctionChoice | None, settings: ExportSettings) -> None:
    """The postconditions: valid for onnx with strict shape inference, and one node per call where that was asked."""
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(str(path), load_external_data=False)
    nodes = sum(node.domain == DOMAIN for node in model.graph.node)
    wanted = choice is not None and settings.functions == "keep"
    if wanted != bool(nodes) or wanted != bool(model.functions):
        raise ExportError(
            f"The graph has {nodes} {DOMAIN} nodes and {len(model.functions)} functions, which is not what "
            f"functions={settings.functions!r} promises. Please report this."
        )


SCOPES = "pkg.torch.onnx.name_scopes"


def rename(model: ir.Model, outputs: tuple[str, ...]) -> None:
    """Name nodes and values ``module/path/Operator``, drop the tracer's metadata (it holds paths of source files)."""
    for value, name in zip(model.graph.outputs, outputs, strict=True):
        value.name = name
    keep = {id(value) for value in model.graph.outputs}
    seen: Counter[str] = Counter()
    for node in model.graph:
        base = f"{_path(node)}{node.op_type}"
        seen[base] += 1
        node.name = base if seen[base] == 1 else f"{base}_{seen[base]}"
        for index, value in enumerate(node.outputs):
            if id(value) not in keep:
                value.name = node.name if index == 0 else f"{node.name}.{index}"
            value.metadata_props.clear()
        node.metadata_props.clear()
        node.doc_string = None
    _name_initializers(model)
    for value in [*model.graph.inputs, *model.graph.initializers.values()]:
        value.metadata_props.clear()
    model.metadata_props.clear()
    model.graph.metadata_props.clear()


def _name_initializers(model: ir.Model) -> None:
    """Constants that the optimiser made are named after the node that reads them first: ``module/MatMul.weight``."""
    for value in list(model.graph.initializers.values()):
        uses, old = list(value.uses()), value.name or ""
        if "." in old or not uses:
            continue
        node, index = uses[0]
        kind = "weight" if node.op_type in ("MatMul", "Gemm") else f"constant_{index}"
        name = f"{node.name}.{kind}"
        if name not in model.graph.initializers:
            del model.graph.initializers[old]
            value.name = name
            model.graph.initializers[name] = value


def _path(node: ir.Node) -> str:
    """``stack.blocks.0.attention/`` from the tracer's list of scopes; the last one names the operation itself."""
    scopes = ast.literal_eval(node.metadata_props.get(SCOPES, "[]"))
    modules = [scope for scope in scopes[:-1] if scope and not scope.startswith("_")]
    return f"{modules[-1]}/" if modules else ""
