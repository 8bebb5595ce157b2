"""The library of functions for one choice of settings."""

from __future__ import annotations

import onnx

from osa_runtime.exporters.function_order import put_in_order
from osa_runtime.exporters.functions.approximants import approximant_functions
from osa_runtime.exporters.functions.attention import attention_functions
from osa_runtime.exporters.functions.choice import DOMAIN, VERSION, FunctionChoice
from osa_runtime.exporters.functions.dense import dense_functions
from osa_runtime.exporters.functions.folded import folded_functions
from osa_runtime.exporters.functions.lowrank import lowrank_functions
from osa_runtime.exporters.functions.portable import constants_as_tensors, in_float32
from osa_runtime.exporters.functions.rounding import rounding_functions
from osa_runtime.exporters.functions.scaling import scaling_functions
from osa_runtime.ops.scaling import reach


def build_functions(choice: FunctionChoice, opset: int = 18) -> list[onnx.FunctionProto]:
    """The definitions that ``OrthogonalAttention`` needs under this choice, callees before callers."""
    functions = [*approximant_functions(choice.approximant), *_scaling(choice), *rounding_functions(choice.core)]
    if choice.has_dense:
        functions += dense_functions(choice)
    if choice.form != "dense":
        functions += lowrank_functions(choice)
    if choice.core == "float32":
        in_float32(functions)
    functions += attention_functions(choice)
    if choice.layered:
        functions += folded_functions(choice)
    roots = {"OrthogonalAttention", "OrthogonalSelfAttention", "OrthogonalSelfAttentionLinear", "SkewExponential"}
    needed = reachable({f.name: f for f in functions}, roots)
    return [_finished(f, opset) for f in functions if f.name in needed]


def _scaling(choice: FunctionChoice) -> list[onnx.FunctionProto]:
    form = "dense" if choice.form == "dense" else "lowrank"  # auto has no fixed number of squarings
    return scaling_functions(choice.squarings, reach(choice.approximant, form, False))


def reachable(functions: dict[str, onnx.FunctionProto], roots: set[str]) -> set[str]:
    """The names of these functions and of all that they call."""
    found: set[str] = set()
    waiting = [name for name in roots if name in functions]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [n for n in _called(functions[name].node) if n in functions]
    return found


def _called(nodes: object) -> set[str]:
    names: set[str] = set()
    for node in nodes:  # type: ignore[attr-defined]  # a protobuf container
        if node.domain == DOMAIN:
            names.add(node.op_type)
        for attribute in node.attribute:
            names |= _called(attribute.g.node)
    return names


def _finished(function: onnx.FunctionProto, opset: int) -> onnx.FunctionProto:
    """Label the opset and name the nodes.

    The operators used here mean the same in opsets 18 and later, so the version is only a label to set.
    """
    del function.opset_import[:]
    function.opset_import.extend([onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid(DOMAIN, VERSION)])
    constants_as_tensors(function.node)
    _state_loop_conditions(function)
    put_in_order(function)
    return function


def _state_loop_conditions(function: onnx.FunctionProto) -> None:
    """Set the condition of each Loop. It is optional, but without it onnx's ReferenceEvaluator runs no trip at all."""
    loops = [node for node in function.node if node.op_type == "Loop" and not node.input[1]]
    for loop in loops:
        loop.input[1] = "always"
    if loops:
        always = onnx.helper.make_tensor("always", onnx.TensorProto.BOOL, [], [True])
        function.node.insert(0, onnx.helper.make_node("Constant", [], ["always"], value=always))
