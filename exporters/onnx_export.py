"""The ONNX format: capture, name, attach the functions, check, write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxscript.optimizer
from onnx_ir.convenience import replace_nodes_and_values
from onnx_ir.passes.common import InlinePass
from torch import nn

from osa_runtime.errors import ExportError
from osa_runtime.exporters.examples import Examples
from osa_runtime.exporters.functions import DOMAIN, VERSION, FunctionChoice, build_functions
from osa_runtime.exporters.functions.flat import flat_functions
from osa_runtime.exporters.functions.portable import keep_nan
from osa_runtime.exporters.manifest_entries import manifest_entry
from osa_runtime.exporters.onnx_capture import capture
from osa_runtime.exporters.onnx_names import name_graph
from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.formats import FORMATS
from osa_runtime.manifest import AttentionCall, AttentionSettings
from osa_runtime.onnx_files import LARGEST_SINGLE_FILE
from osa_runtime.onnx_functions import expanded
from osa_runtime.onnx_layers import JOINED, LAYER
from osa_runtime.steps import Progress

IR_VERSION = 8  # that of opset 18; ONNX Runtime 1.17 and others of its age read no newer one


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
        name_graph(model, outputs)
        # Not where padded rows would go through both matrices, nor in half precision, which would round the product.
        if choice is not None and choice.layered and not choice.any_type and not choice.masked:
            choice = replace(choice, joined=_join_linear_layers(model))
        attentions = _calls(ir.from_proto(expanded(ir.to_proto(model))) if model.functions else model)
        # for runtimes other than ONNX Runtime, and where a norm is out of range so soon that NaN means something
        if settings.functions == "inline" or (choice is not None and choice.is_fixed):
            keep_nan(model)
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
    inputs = node.inputs[:4] if node.op_type == JOINED else node.inputs
    return AttentionCall(
        name=(node.name or "").rpartition("/")[0],
        inputs=tuple(str(value.name) for value in inputs if value is not None),
        output=str(node.outputs[0].name),
        squarings=node.outputs[1].name if len(node.outputs) > 1 else None,
        scale=None if scale is None else scale.numpy().astype(float).tolist(),
    )


def _join_linear_layers(model: ir.Model) -> bool:
    """Make one node of each attention layer and the linear one behind it, if nothing else reads the layer's result.

    The product of W_O and the other matrix is then a constant.
    """
    pairs = [(node, _linear_behind(node, model)) for node in model.graph if node.op_identifier()[:2] == (DOMAIN, LAYER)]
    for node, linear in pairs:
        if linear is not None:
            product, last = linear
            inputs = [*node.inputs, product.inputs[1], last.inputs[1]]
            joined = ir.Node(DOMAIN, JOINED, inputs, num_outputs=len(node.outputs), name=node.name)
            for old, new in zip(node.outputs[1:], joined.outputs[1:], strict=True):
                new.name, new.type, new.shape = old.name, old.type, old.shape
            replaced = [last, product, node]
            replace_nodes_and_values(model.graph, last, replaced, [joined], last.outputs, joined.outputs[:1])
    return any(linear is not None for _, linear in pairs)


def _linear_behind(node: ir.Node, model: ir.Model) -> tuple[ir.Node, ir.Node] | None:
    """The product and the sum of a linear layer with a bias, if it is all that reads the node's first output."""
    product = _only_reader(node, "MatMul", 2, model)
    last = None if product is None else _only_reader(product, "Add", 1, model)
    return None if product is None or last is None else (product, last)


def _only_reader(node: ir.Node, kind: str, rank: int, model: ir.Model) -> ir.Node | None:
    """The one node that reads the value, if it has this kind and a constant of this rank as its second input."""
    value = node.outputs[0]
    uses = list(value.uses())
    if len(uses) != 1 or value in model.graph.outputs:
        return None
    reader, place = uses[0]
    constant = reader.inputs[1] if reader.op_type == kind and place == 0 else None
    if constant is None or constant.name not in model.graph.initializers or constant.shape is None:
        return None
    return reader if len(constant.shape) == rank else None


def _with_remaining_counts(calls: tuple[AttentionCall, ...], model: ir.Model) -> tuple[AttentionCall, ...]:
    """The calls without the counts that inlining dropped, and those that are inside functions of modules."""
    present = {value.name for node in model.graph for value in node.outputs}
    return tuple(call if call.squarings in present else replace(call, squarings=None) for call in calls)


def _attach(model: ir.Model, choice: FunctionChoice, settings: ExportSettings) -> None:
    for proto in (flat_functions if settings.functions == "keep" else build_functions)(choice, settings.opset):
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
    bodies = [model.graph, *(function for function in model.functions if function.domain != DOMAIN)]
    nodes = sum(node.domain == DOMAIN for body in bodies for node in body.node)
    kept = settings.functions == "keep"
    wanted = kept and choice is not None, kept and (choice is not None or bool(settings.function_classes))
    if wanted != (bool(nodes), bool(model.functions)):
        raise ExportError(
            f"The graph has {nodes} {DOMAIN} nodes and {len(model.functions)} functions, which is not what "
            f"functions={settings.functions!r} promises. Please report this."
        )
