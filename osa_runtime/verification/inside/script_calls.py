"""The modules that a TorchScript module calls, their order, and the origin of its output, read from its graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from osa_runtime.verification.inside.model_parts import is_closed

# Graphs, nodes and values of TorchScript have no public types.
Graph = Any
GraphNode = Any
GraphValue = Any


class ScriptCalls:
    def __init__(self, module: torch.jit.ScriptModule) -> None:
        self.modules: dict[str, Any] = dict(module.named_modules())

    def units(self) -> tuple[str, ...]:
        """The modules with a clean boundary that run exactly once, in the order in which they finish.

        Containers that return the output of one of their parts are left out.
        """
        finished = list(self._finished("", "forward"))
        once = [path for path in finished if path and finished.count(path) == 1]
        return tuple(path for path in once if self._is_clean(path) and self._maker(path) == path)

    def graph(self, path: str, method: str = "forward") -> Graph:
        return self.modules[path]._c._get_method(method).graph

    def forward(self, path: str) -> Graph | None:
        """The graph of the module's ``forward``; None for a list of modules, which has none."""
        return self.graph(path) if self.modules[path]._c._has_method("forward") else None

    def passed_on(self, value: GraphValue, path: str, graph: Graph) -> GraphValue:
        """The value itself, or the input of a module such as an Identity that only passes it on."""
        node = value.node()
        if node.kind() != "prim::CallMethod" or node.s("name") != "forward":
            return value
        inner = self._receiver(node.inputsAt(0), path, _own(graph))
        made = self._maker(inner) if inner is not None else None
        return self.passed_on(node.inputsAt(made), path, graph) if isinstance(made, int) else value

    def _finished(self, path: str, method: str) -> Iterator[str]:
        if method != "forward" or not self._is_closed(path):
            graph = self.graph(path, method)
            yield from self._finished_in(graph.nodes(), path, _own(graph))
        if method == "forward":
            yield path

    def _finished_in(self, nodes: Any, path: str, own: GraphValue) -> Iterator[str]:
        for node in nodes:
            if node.kind() == "prim::CallMethod":
                receiver = self._receiver(node.inputsAt(0), path, own)
                if receiver is not None:
                    yield from self._finished(receiver, node.s("name"))
            elif node.kind() == "prim::If":
                yield from self._finished_in_branches(node, path, own)
            else:
                for block in node.blocks():  # a loop runs its calls any number of times: count them as two
                    yield from 2 * list(self._finished_in(block.nodes(), path, own))

    def _finished_in_branches(self, node: GraphNode, path: str, own: GraphValue) -> Iterator[str]:
        """The modules that run once: each branch that may be taken calls them once."""
        branches = [list(self._finished_in(block.nodes(), path, own)) for block in self._taken(node, path, own)]
        for called in branches[0]:
            yield called
            if any(branch.count(called) != 1 for branch in branches):
                yield called
        for branch in branches[1:]:
            yield from 2 * [called for called in branch if called not in branches[0]]

    def _taken(self, node: GraphNode, path: str, own: GraphValue) -> list[Any]:
        """The branches that may be taken and do not fail; only one if a fixed attribute decides."""
        condition, blocks = node.input().node(), list(node.blocks())
        if condition.kind() == "prim::GetAttr":
            owner = self._receiver(condition.input(), path, own)
            if owner is not None:
                return [blocks[0] if self.modules[owner]._c.getattr(condition.s("name")) else blocks[1]]
        return [block for block in blocks if not _fails(block)] or blocks

    def _receiver(self, value: GraphValue, path: str, own: GraphValue) -> str | None:
        """The path of the module that a value stands for."""
        if value.debugName() == own.debugName():
            return path
        if value.node().kind() != "prim::GetAttr":
            return None
        outer = self._receiver(value.node().input(), path, own)
        name = value.node().s("name")
        return None if outer is None else f"{outer}.{name}" if outer else name

    def _maker(self, path: str) -> str | int:
        """The innermost module that computed this one's output; a number stands for its input at that place."""
        if self._is_closed(path):
            return path
        graph = self.graph(path)
        return self._made_by(next(iter(graph.outputs())), path, graph)

    def _made_by(self, value: GraphValue, path: str, graph: Graph) -> str | int:
        inputs = [x.debugName() for x in graph.inputs()]
        if value.debugName() in inputs:
            return inputs.index(value.debugName())
        node = value.node()
        if node.kind() == "prim::unchecked_cast":
            return self._made_by(node.input(), path, graph)
        if node.kind() == "prim::If":
            return self._made_in_branches(value, path, graph)
        inner = self._receiver(node.inputsAt(0), path, _own(graph)) if node.kind() == "prim::CallMethod" else None
        if inner is None or node.s("name") != "forward":
            return path
        made = self._maker(inner)
        if isinstance(made, int):
            return self._made_by(node.inputsAt(made), path, graph)
        return made if self._is_clean(made) else path

    def _made_in_branches(self, value: GraphValue, path: str, graph: Graph) -> str | int:
        blocks = self._taken(value.node(), path, _own(graph))
        made = {self._made_by(list(block.outputs())[value.offset()], path, graph) for block in blocks}
        return made.pop() if len(made) == 1 else path

    def _is_closed(self, path: str) -> bool:
        part = self.modules[path]
        return is_closed(part.original_name, (child.original_name for child in part.children()))

    def _is_clean(self, path: str) -> bool:
        """True for one tensor and perhaps a mask in, and one tensor out."""
        schema = self.modules[path]._c._get_method("forward").schema
        x, mask = [*schema.arguments[1:], None, None][:2]
        if len(schema.arguments) > 3 or x is None or str(x.type) != "Tensor":
            return False
        fits = mask is None or str(mask.type) == "Optional[Tensor]" or (mask.name, str(mask.type)) == ("mask", "Tensor")
        return fits and [str(value.type) for value in schema.returns] == ["Tensor"]


def _fails(block: Any) -> bool:
    return any(node.kind() == "prim::RaiseException" for node in block.nodes())


def _own(graph: Graph) -> GraphValue:
    """The module itself, the first input of its methods."""
    return next(iter(graph.inputs()))
