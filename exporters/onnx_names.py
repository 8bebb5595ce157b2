"""The names of nodes and values in a graph, ``module.path/Operator``, and in a function relative to its module."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection
from itertools import count

import onnx_ir as ir

from osa_runtime.exporters.functions import DOMAIN as ATTENTION_DOMAIN
from osa_runtime.onnx_functions import joined

SCOPES = "pkg.torch.onnx.name_scopes"


def name_graph(model: ir.Model, outputs: tuple[str, ...]) -> None:
    """Name everything in the main graph, and drop the tracer's metadata: it holds paths of source files."""
    for value, name in zip(model.graph.outputs, outputs, strict=True):
        value.name = name
    _name_nodes(model.graph, "", {id(value) for value in model.graph.outputs})
    _name_initializers(model)
    for value in [*model.graph.inputs, *model.graph.initializers.values()]:
        value.metadata_props.clear()
    model.metadata_props.clear()
    model.graph.metadata_props.clear()


def name_function(model: ir.Model, function: ir.Function, path: str, unnamed: Collection[ir.Value]) -> None:
    """Name the nodes of a body after the parts of the module at ``path``, and inputs without a name after readers."""
    _name_nodes(function.graph, path, {id(value) for value in [*function.inputs, *function.outputs]})
    taken = {str(value.name) for value in function.outputs}
    for value in function.inputs:
        value.name = _free(_after_reader(model, value) if value in unnamed else str(value.name), taken)
        taken.add(value.name)


def module_path(node: ir.Node) -> str:
    """``stack.blocks.0.attention`` from the tracer's list of scopes; the last one names the operation itself."""
    scopes = ast.literal_eval(node.metadata_props.get(SCOPES, "[]"))
    modules = [scope for scope in scopes[:-1] if scope and not scope.startswith("_")]
    return str(modules[-1]) if modules else ""


def relative(name: str, path: str) -> str:
    """The name without the path of the module that it is inside; ``joined`` undoes it."""
    inside = name == path or name.startswith((f"{path}.", f"{path}/"))
    return name[len(path) :].removeprefix(".") if path and inside else name


def _name_nodes(graph: ir.Graph, path: str, keep: set[int]) -> None:
    seen: Counter[str] = Counter()
    taken: set[str] = set()
    for node in graph:
        base = relative(f"{module_path(node)}/{node.op_type}", path)
        base = base if path else base.removeprefix("/")
        seen[base] += 1
        # a second call of F and a first of F_2, the class's other body, would have one name
        node.name = _free(base if seen[base] == 1 else f"{base}_{seen[base]}", taken)
        taken.add(node.name)
        for index, value in enumerate(node.outputs):
            if id(value) not in keep:
                kind = "squarings" if node.domain == ATTENTION_DOMAIN else index
                value.name = node.name if index == 0 else f"{node.name}.{kind}"
    for node in graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()


def _name_initializers(model: ir.Model) -> None:
    """Constants that the optimiser made are named after the node that reads them first: ``module/MatMul.weight``."""
    for value in list(model.graph.initializers.values()):
        old = value.name or ""
        if "." in old or not value.uses():
            continue
        name = _after_reader(model, value)
        if name not in model.graph.initializers:
            del model.graph.initializers[old]
            value.name = name
            model.graph.initializers[name] = value


def _after_reader(model: ir.Model, value: ir.Value) -> str:
    """The name of a weight after the first node that reads it, or that reads it inside of a function."""
    node, index = next(iter(value.uses()))
    function = model.functions.get(node.op_identifier())
    if function is not None and function.inputs[index].name:
        return joined((node.name or "").rpartition("/")[0], str(function.inputs[index].name))
    kind = "weight" if node.op_type in ("MatMul", "Gemm") else f"constant_{index}"
    return f"{node.name}.{kind}"


def _free(name: str, taken: Collection[str]) -> str:
    return next(one for i in count(1) if (one := name if i == 1 else f"{name}_{i}") not in taken)
