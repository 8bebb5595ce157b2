"""The functions of modules in an ONNX model, and the same model with their bodies in its graph.

A node of such a function is named ``module.path/Class``. Names in the body are relative to the module, so that in the
graph they are those that an export without the function has: ``module.path.part/MatMul``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from osa_runtime.onnx_files import bodies, free_name

ATTENTION_DOMAIN = "ai.osa"

Key = tuple[str, str]


def joined(path: str, name: str) -> str:
    """The name in the graph of something in the body of the function at ``path``."""
    if not path:
        return name.removeprefix("/")
    return f"{path}{name}" if name.startswith("/") else f"{path}.{name}"


def module_functions(model: ModelProto) -> dict[Key, FunctionProto]:
    """The functions that are not operators of ours; those with attributes were not made from a module."""
    return {
        (function.domain, function.name): function
        for function in model.functions
        if function.domain != ATTENTION_DOMAIN and not (function.attribute or function.attribute_proto)
    }


def expanded(model: ModelProto, keep: Collection[Key] = ()) -> ModelProto:
    """The model with the bodies of all its modules' functions in its graph, except of those to ``keep``."""
    functions = {key: function for key, function in module_functions(model).items() if key not in keep}
    if not functions:
        return model
    result = copy.deepcopy(model)
    del result.graph.node[:], result.functions[:]
    for node in _Expansion(functions, model.graph).nodes(model.graph.node):
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = result.graph.initializer.add()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
        else:
            result.graph.node.append(node)
    # What is kept may call any other.
    result.functions.extend(one for one in model.functions if keep or (one.domain, one.name) not in functions)
    return result


class _Expansion:
    """Bodies in place of nodes, with names that nothing else has."""

    def __init__(self, functions: dict[Key, FunctionProto], graph: GraphProto) -> None:
        self._functions = functions
        self._nodes = {node.name for node in graph.node}
        self._values = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
        self._values |= {name for node in graph.node for name in node.output}

    def nodes(self, nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
        for node in nodes:
            function = self._functions.get((node.domain, node.op_type))
            if function is None:
                yield node
            else:
                yield from self.nodes(self._body(node, function))

    def _body(self, call: NodeProto, function: FunctionProto) -> list[NodeProto]:
        path = call.name.rpartition("/")[0]
        names = dict(zip(function.input, call.input, strict=False))
        names |= dict.fromkeys(function.input[len(call.input) :], "")
        names |= {inner: outer for inner, outer in zip(function.output, call.output, strict=False) if outer}

        def renamed(name: str) -> str:
            if name and name not in names:
                names[name] = free_name(joined(path, name), self._values)
            return names.get(name, name)

        return [
            _renamed(node, renamed, lambda name: free_name(joined(path, name), self._nodes)) for node in function.node
        ]


def _renamed(node: NodeProto, renamed: Callable[[str], str], node_name: Callable[[str], str]) -> NodeProto:
    """A copy with other names, also inside its branches and loops."""
    result = copy.deepcopy(node)
    result.name = node_name(node.name or f"/{node.op_type}")
    result.input[:] = map(renamed, node.input)
    result.output[:] = map(renamed, node.output)
    for graph in bodies(result):
        for value in [*graph.input, *graph.output, *graph.initializer, *graph.value_info]:
            value.name = renamed(value.name)
        inner = [_renamed(part, renamed, node_name) for part in graph.node]
        del graph.node[:]
        graph.node.extend(inner)
    return result
