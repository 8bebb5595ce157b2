"""The modules that a TorchScript module calls, read from its graphs, and their values, recorded or replaced.

Each part gets lists and switches as attributes, and the code that calls it one more statement before and after the
call: if the switch is on, append the value to the list; if another value is given, continue with it. So the values are
those of the artifact's own run, whatever its control flow. Modules of one class share their code; lists and switches
belong to each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from osa_runtime.errors import RunError
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


INPUT, OUTPUT, CORE = "verification_input", "verification_output", "verification_core"

# Copies, since later code may work in place.
STATEMENTS = """
def verification_cut(wanted: bool, kept: List[Tensor], given: List[Tensor], value: Tensor,
                     mask: Optional[Tensor]) -> Tensor:
    if wanted:
        kept.append(value.clone())
        if mask is not None:
            kept.append(mask.clone())
    if len(given) > 0:
        return given[0].clone()
    return value

def verification_core(wanted: bool, kept: List[Tensor], q: Tensor, k: Tensor, v: Tensor, scale: Tensor,
                      mask: Optional[Tensor], out: Tensor):
    if wanted:
        kept.extend([q.clone(), k.clone(), v.clone(), scale.clone(), out.clone()])
        if mask is not None:
            kept.append(mask.clone())
"""


class Recorder:
    """Changes the graphs of a module, which must not have run before."""

    def __init__(self, calls: ScriptCalls) -> None:
        self._statements = torch.jit.CompilationUnit(STATEMENTS)
        self._calls, self._parts = calls, list(calls.modules.values())
        self._known: set[tuple[str, str]] = set()
        self._seen: set[str] = set()

    def add_cuts(self, units: Sequence[str]) -> None:
        """Add statements around every call of these units."""
        kinds = {_type_name(self._calls.modules[name]) for name in units}
        for path in self._calls.modules:
            graph = self._calls.forward(path)
            if graph is None or _type_name(self._calls.modules[path]) in self._seen:
                continue
            self._seen.add(_type_name(self._calls.modules[path]))
            for call in graph.findAllNodes("prim::CallMethod", recurse=True):
                if call.s("name") == "forward" and call.inputsAt(0).type().qualified_name() in kinds:
                    self._cut(graph, call, path)

    def _cut(self, graph: Graph, call: GraphNode, path: str) -> None:
        receiver = call.inputsAt(0)
        self._register(receiver.type().qualified_name(), INPUT)
        self._register(receiver.type().qualified_name(), OUTPUT)
        x = self._calls.passed_on(call.inputsAt(1), path, graph)
        graph.setInsertPoint(call)
        inputs = list(call.inputs())
        taken = self._insert_cut(graph, receiver, INPUT, x, inputs[2] if len(inputs) > 2 else None)
        call.replaceInput(1, taken)
        # Also later readers of the same value, such as a residual sum.
        x.replaceAllUsesAfterNodeWith(call, taken)
        out, following = call.output(), graph.create("prim::Constant", 1)
        following.insertAfter(call)
        graph.setInsertPoint(following)
        given = self._insert_cut(graph, receiver, OUTPUT, out)
        out.replaceAllUsesAfterNodeWith(following, given)
        following.destroy()

    def _insert_cut(
        self, graph: Graph, receiver: GraphValue, what: str, value: GraphValue, mask: GraphValue | None = None
    ) -> GraphValue:
        arguments = [_attribute(graph, receiver, name, kind) for name, kind in _attributes(what)]
        mask_or_none = graph.insertConstant(None) if mask is None else mask
        return graph.insertGraph(self._statements.verification_cut.graph, [*arguments, value, mask_or_none])[0]

    def add_core(self, part: Any) -> None:
        if (_type_name(part), CORE) in self._known:
            return  # another part shares the code
        self._register(_type_name(part), CORE)
        graph = part._c._get_method("forward").graph
        call = attention_call(graph)
        assert call is not None, "only layers that hold the call have a core"
        graph.setInsertPoint(graph.return_node())
        own = next(iter(graph.inputs()))
        arguments = [_attribute(graph, own, name, kind) for name, kind in _attributes(CORE)[:2]]
        values = [*list(call.inputs())[1:6], call.output()]
        graph.insertGraph(self._statements.verification_core.graph, [*arguments, *values])

    def _register(self, kind: str, what: str) -> None:
        """Add what the code reads to every part that runs it; otherwise torch reads invalid memory."""
        if (kind, what) in self._known:
            return
        self._known.add((kind, what))
        for part in self._parts:
            if _type_name(part) == kind:
                for name, type_ in _attributes(what):
                    part._c._register_attribute(name, type_, False if name.endswith("wanted") else [])


@contextlib.contextmanager
def recording(parts: Sequence[Any], what: str) -> Iterator[None]:
    """While active, these parts keep their inputs or outputs; read them with ``recorded`` before it ends."""
    try:
        for part in parts:
            part._c.setattr(f"{what}_wanted", True)
        yield
    finally:
        for part in parts:
            part._c.setattr(f"{what}_wanted", False)
            part._c.setattr(what, [])


@contextlib.contextmanager
def replacing(values: Mapping[Any, tuple[Tensor, Tensor]]) -> Iterator[None]:
    """While active, each part takes the first and returns the second of its tensors."""
    try:
        for part, (x, out) in values.items():
            part._c.setattr(f"{INPUT}_given", [x])
            part._c.setattr(f"{OUTPUT}_given", [out])
        yield
    finally:
        for part in values:
            for what in (INPUT, OUTPUT):
                part._c.setattr(f"{what}_given", [])


def recorded(part: Any, name: str, what: str, counts: Sequence[int] = (1,)) -> list[Tensor]:
    found: list[Tensor] = part._c.getattr(what)
    if len(found) not in counts:
        raise RunError(f"{name} was expected to run once, but kept {len(found)} tensors; export the model again.")
    return found


def attention_call(graph: Graph) -> GraphNode | None:
    """The one call of ``orthogonal_attention`` in a graph, outside branches and loops."""
    outermost = [node for node in graph.nodes() if node.kind() == "prim::CallFunction" and _is_attention(node)]
    if len(outermost) != 1 or not calls_attention(graph) or str(outermost[0].inputsAt(4).type()) != "Tensor":
        return None
    return outermost[0]


def calls_attention(graph: Graph) -> bool:
    """True if the graph calls ``orthogonal_attention`` in one place, which may be a branch."""
    return sum(map(_is_attention, graph.findAllNodes("prim::CallFunction", recurse=True))) == 1


def _is_attention(node: GraphNode) -> bool:
    return node.inputsAt(0).type().annotation_str.endswith("osa_runtime.ops.attention.orthogonal_attention")


def _type_name(part: Any) -> str:
    return part._c._type().qualified_name()


def _attributes(what: str) -> list[tuple[str, Any]]:
    tensors = torch._C.ListType(torch._C.TensorType.get())
    found = [(f"{what}_wanted", torch._C.BoolType.get()), (what, tensors)]
    return found if what == CORE else [*found, (f"{what}_given", tensors)]


def _attribute(graph: Graph, owner: GraphValue, name: str, kind: Any) -> GraphValue:
    node = graph.create("prim::GetAttr", [owner], 1)
    node.s_("name", name)
    graph.insertNode(node)
    node.output().setType(kind)
    return node.output()


# The places of q, k, v and mask among the inputs of the call; the function itself comes first, the scale fourth.
GIVEN = {"q": 1, "k": 2, "v": 3, "mask": 5}


def attention_function(part: Any) -> Any:
    """(layer, q, k, v, mask) → exp(S)·v, from a copy of the layer's code; scale and options stay the layer's own."""
    graph = part._c._get_method("forward").graph.copy()
    call = attention_call(graph)
    assert call is not None, "only layers that hold the call can apply attention"
    old = list(graph.inputs())[1:]
    for name, place in GIVEN.items():
        value = graph.addInput(f"given_{name}")
        tensor = torch._C.TensorType.get()
        value.setType(torch._C.OptionalType(tensor) if name == "mask" else tensor)
        call.replaceInput(place, value)
    graph.eraseOutput(0)
    graph.registerOutput(call.output())
    _drop_unneeded(graph)
    for _ in old:
        graph.eraseInput(1)
    return torch._C._create_function_from_graph("apply_attention", graph)


def _drop_unneeded(graph: Graph) -> None:
    """Remove unused nodes, also those with side effects, such as the projections of a missing input."""
    needed = {value.debugName() for value in graph.outputs()}
    for node in reversed(list(graph.nodes())):
        if needed.isdisjoint(value.debugName() for value in node.outputs()):
            node.destroy()
        else:
            needed.update(value.debugName() for value in _read(node))


def _read(node: Any) -> list[GraphValue]:
    """The values that a node reads, also inside its branches."""
    inner = [value for block in node.blocks() for value in block.outputs()]
    inner += [value for block in node.blocks() for part in block.nodes() for value in _read(part)]
    return [*node.inputs(), *inner]
