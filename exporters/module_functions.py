"""ONNX functions of the marked calls of modules: one for each class and body, with weights as inputs.

Calls whose bodies are equal, node by node, share one function. In the end, inputs that are the same weight in every
call become one, and a number that is the same in every call becomes a constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.convenience import get_const_tensor
from onnx_ir.passes.common import RemoveUnusedNodesPass

from osa_runtime.errors import ExportError
from osa_runtime.exporters.module_bodies import Marks, ModuleBody, constant, drop_mark, inner_graphs
from osa_runtime.exporters.module_calls import ENTER, MARKS, ModuleCall, ModuleCalls
from osa_runtime.exporters.onnx_names import SCOPES, module_path, name_function
from osa_runtime.exporters.settings import class_name


def move_into_functions(model: ir.Model, calls: ModuleCalls, weights: Iterable[str]) -> None:
    """Replace each marked call by a node of a function. ``weights`` are the names of parameters and buffers."""
    marks = _marks(model)
    found: dict[tuple[object, ...], _Made] = {}
    for number in calls.order:
        if number in marks:
            _move_call(model, calls.calls[number], marks[number], found)
    _check_all(calls, marks)
    model.graph.sort()
    for made in reversed(found.values()):  # callers before what they call
        _settle(model, made, set(weights))
    RemoveUnusedNodesPass()(model)
    for made in found.values():
        name_function(model, made.function, made.path, made.unnamed)
        _forget_shapes(made.function.graph)
        for value in made.function.inputs:
            value.type = None


@dataclass
class _Made:
    """A function, the path of the module that it was made from, and the position of its first weight."""

    function: ir.Function
    path: str
    first_weight: int
    unnamed: set[ir.Value]


def _marks(model: ir.Model) -> dict[int, Marks]:
    """The marks in the graph; those in branches and loops, whose modules stay as they are, are removed."""
    found: dict[int, Marks] = {}
    for node in list(model.graph.all_nodes()):
        if node.domain != MARKS:
            continue
        if node.graph is not model.graph:
            drop_mark(node)
            continue
        one = found.setdefault(node.attributes["call"].as_int(), Marks())
        (one.enter if node.op_type == ENTER else one.exit)[node.attributes["index"].as_int()] = node
    model.opset_imports.pop(MARKS, None)
    return {call: Marks(dict(sorted(one.enter.items())), dict(sorted(one.exit.items()))) for call, one in found.items()}


def _check_all(calls: ModuleCalls, marks: dict[int, Marks]) -> None:
    made = {calls.calls[number].kind for number, one in marks.items() if one.exit}
    for wanted in calls.classes:
        if not any(issubclass(kind, wanted) for kind in made):
            raise ExportError(
                f"Every call of {wanted.__name__} is inside a branch or loop of the model, or nothing uses its result; "
                "there is no function to make. Leave the class out of functions."
            )


def _move_call(model: ir.Model, call: ModuleCall, marks: Marks, found: dict[tuple[object, ...], _Made]) -> None:
    if not marks.exit:  # nothing uses the result
        for mark in marks.enter.values():
            drop_mark(mark)
        return
    path = module_path(next(iter(marks.exit.values())))
    body = ModuleBody(model.graph, marks, (path, *call.paths))
    graph = body.view().clone()
    key = (call.kind, tuple(body.entered), tuple(marks.exit), len(body.captured), _canonical(graph))
    if key not in found:
        for value, name in zip(graph.inputs, [call.inputs[i] for i in body.entered], strict=False):
            value.name = name
        for value, index in zip(graph.outputs, marks.exit, strict=False):
            value.name = call.outputs[index]
        first_weight = len(body.entered) + len(body.captured)
        unnamed = {*graph.inputs[len(body.entered) : first_weight]}
        for value, (hint, _) in zip(graph.inputs[first_weight:], body.weights, strict=True):
            value.name, unnamed = hint.name or value.name, unnamed if hint.name else unnamed | {value}
        found[key] = _Made(_function(model, call.kind, graph), path, first_weight, unnamed)
    body.replace(found[key].function)


def _function(model: ir.Model, kind: type, graph: ir.Graph) -> ir.Function:
    """Add a function named after the class; a second body of the class gets a number."""
    domain = kind.__module__.partition(".")[0].strip("_")
    names = (kind.__name__ if i == 1 else f"{kind.__name__}_{i}" for i in range(1, len(model.functions) + 2))
    name = next(name for name in names if (domain, name, "") not in model.functions)
    used = {node.domain for node in graph.all_nodes()}
    model.opset_imports[domain] = 1
    graph.opset_imports.update({one: version for one, version in model.opset_imports.items() if one in used | {""}})
    function = ir.Function(domain, name, graph=graph, attributes=())
    function.graph.doc_string = f"The module {class_name(kind)}."
    model.functions[function.identifier()] = function
    return function


def _canonical(graph: ir.Graph) -> bytes:
    """The graph as bytes that depend on what is computed alone: values are named in their order."""
    copy = graph.clone()
    _forget_shapes(copy)
    for node in copy.all_nodes():
        for body in inner_graphs(node):
            body.name = None
        node.name, node.doc_string = "", None
        node.metadata_props.clear()
    for index, value in enumerate(_values(copy)):
        value.name = f"v{index}"
        value.metadata_props.clear()
    return ir.to_proto(copy).SerializeToString(deterministic=True)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    for node in graph:
        for body in inner_graphs(node):
            yield from _values(body)
        yield from node.outputs


def _forget_shapes(graph: ir.Graph) -> None:
    """Drop shapes, and types that can be inferred: a body serves calls with other sizes."""
    for value in _values(graph):
        value.shape = None
    for value in (value for node in graph for value in node.outputs):
        value.type = None


def _settle(model: ir.Model, made: _Made, weights: set[str]) -> None:
    """Merge inputs that are one weight in all calls; a number that all calls agree on becomes part of the body."""
    function = made.function
    scopes: Sequence[Iterable[ir.Node]] = [model.graph.all_nodes(), *(f.all_nodes() for f in model.functions.values())]
    sites = [node for nodes in scopes for node in nodes if node.op_identifier() == function.identifier()]
    kept: dict[tuple[object, ...], ir.Value] = {}
    keep = list(range(made.first_weight))
    for index in range(made.first_weight, len(function.inputs)):
        formal, given = function.inputs[index], tuple(site.inputs[index] for site in sites)
        tensor = _number(given, weights)
        if given in kept:
            ir.convenience.replace_all_uses_with(formal, kept[given])
        elif tensor is not None:
            number, reader = constant(tensor), next(iter(formal.uses())).node
            number.metadata_props[SCOPES] = reader.metadata_props.get(SCOPES, "[]")
            function.graph.insert_before(reader if reader.graph is function.graph else function.graph[0], number)
            ir.convenience.replace_all_uses_with(formal, number.outputs[0])
        else:
            kept[given] = formal
            keep.append(index)
    for node in sites:
        values = [node.inputs[index] for index in keep]
        node.resize_inputs(len(values))
        for index, value in enumerate(values):
            node.replace_input_with(index, value)
    function.inputs[:] = [function.inputs[index] for index in keep]


def _number(values: Sequence[ir.Value | None], weights: set[str]) -> ir.TensorProtocol | None:
    """The content of these constants if they are one number, the same in all of them, and no parameter."""
    found = [None if value is None or value.name in weights else get_const_tensor(value) for value in values]
    tensors = [tensor for tensor in found if tensor is not None and len(tensor.shape) == 0]
    same = {(tensor.dtype, tensor.tobytes()) for tensor in tensors}
    return tensors[0] if len(tensors) == len(values) and len(same) == 1 else None
