"""The functions as a model holds them: the bodies of those they call in place of the calls, typed, and nothing twice.

ONNX Runtime puts the bodies of functions into the graph one level at a time, anew for each node, and infers all types
again after each level: nested functions take it twice as long to load. The nested ones are what is written, read and
tested; here they are only rewritten, by the passes of onnx, onnx_ir and onnxscript.
"""

from __future__ import annotations

import functools

import onnx
import onnx.inliner
import onnx_ir as ir
import onnxscript.optimizer
from onnx import TensorProto, helper
from onnx_ir.passes import common

from osa_runtime.exporters.function_order import put_in_order
from osa_runtime.exporters.functions.choice import DOMAIN, FunctionChoice
from osa_runtime.exporters.functions.library import build_functions, reachable
from osa_runtime.steps import quiet

# The functions of a model's nodes, and what two of them share. Tools rewrite a layer's node into nodes of the others.
KEPT = ("OrthogonalAttention", "ShiftedSelfAttention", "OrthogonalSelfAttention", "OrthogonalSelfAttentionLinear")


@functools.cache
def flat_functions(choice: FunctionChoice, opset: int = 18) -> tuple[onnx.FunctionProto, ...]:
    """The definitions of the nodes that a model may hold under this choice, callees before callers."""
    known = {function.name: function for function in build_functions(choice, opset)}
    for name in [name for name in known if name in KEPT]:
        known[name] = _flat(known[name], known, not choice.any_type or name == "ShiftedSelfAttention")
    return tuple(known[name] for name in known if name in KEPT)


def _flat(function: onnx.FunctionProto, known: dict[str, onnx.FunctionProto], typed: bool) -> onnx.FunctionProto:
    types = {name: TensorProto.BOOL if name == "mask" else TensorProto.FLOAT * typed for name in function.input}
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in types.items()]
    outputs = [helper.make_value_info(name, onnx.TypeProto()) for name in function.output]
    called = [known[name] for name in sorted(reachable(known, {function.name}) - {function.name})]
    nested = helper.make_model(
        helper.make_graph(function.node, function.name, inputs, outputs),
        functions=called,
        opset_imports=function.opset_import,
        ir_version=8,
    )
    flat = onnx.inliner.inline_selected_functions(nested, [(DOMAIN, name) for name in KEPT], exclude=True)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(flat))
    with quiet():
        onnxscript.optimizer.fold_constants(model, onnx_shape_inference=False)
        ir.passes.Sequential(
            common.CommonSubexpressionEliminationPass(),
            common.RemoveUnusedNodesPass(),
            # to the top, so that branches share them, too
            common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            common.LiftSubgraphInitializersToMainGraphPass(),
            common.DeduplicateInitializersPass(),
            common.CommonSubexpressionEliminationPass(),
        )(model)
    for graph in (model.graph, *model.graph.subgraphs()):  # what a branch returns stays in it
        _initializers_to_nodes(graph)
    for value in (value for node in model.graph.all_nodes() for value in node.outputs):
        value.type = value.shape = None
    proto = ir.serde.serialize_function(ir.Function(DOMAIN, function.name, graph=model.graph, attributes=()))
    proto.doc_string = function.doc_string
    del proto.value_info[:]  # IR version 8 has none
    put_in_order(proto)
    return proto


def _initializers_to_nodes(graph: ir.Graph) -> None:
    """Make constants of the initializers, which a function cannot have."""
    for value in list(graph.initializers.values()):
        constant = ir.node("Constant", [], {"value": value.const_value})
        constant.outputs[0].name = value.name
        graph.insert_before(graph[0], constant) if len(graph) else graph.append(constant)
        value.replace_all_uses_with(constant.outputs[0], replace_graph_outputs=True)
        del graph.initializers[value.name]
