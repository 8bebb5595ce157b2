"""Let a loaded TorchScript module keep what its parts give.

Each part gets a list and a switch as attributes, and its own code one statement more at the end: if the switch is on,
append the result to the list. So the values are those of the artifact's own run, whatever its control flow.
Modules of one class share their code; lists and switches belong to each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from osa_runtime.errors import RunError
from osa_runtime.verification.inside.script_calls import Graph, GraphNode, GraphValue

OUTPUT, CORE = "verification_output", "verification_core"

# Copies, since code further on may work in place.
STATEMENTS = """
def verification_output(wanted: bool, kept: List[Tensor], out: Tensor):
    if wanted:
        kept.append(out.clone())

def verification_core(wanted: bool, kept: List[Tensor], q: Tensor, k: Tensor, v: Tensor, scale: Tensor,
                      mask: Optional[Tensor], out: Tensor):
    if wanted:
        kept.extend([q.clone(), k.clone(), v.clone(), scale.clone(), out.clone()])
        if mask is not None:
            kept.append(mask.clone())
"""


class Recorder:
    """Writes into the graphs of the parts of a module, which must not have run before."""

    def __init__(self, whole: torch.jit.ScriptModule) -> None:
        self._statements = torch.jit.CompilationUnit(STATEMENTS)
        self._parts = [part for _, part in whole.named_modules()]
        self._done: set[tuple[str, str]] = set()

    def add_output(self, part: Any) -> None:
        graph = self._open(part, OUTPUT)
        if graph is not None:
            self._write(graph, graph.return_node(), OUTPUT, list(graph.outputs()))

    def add_core(self, part: Any) -> None:
        graph = self._open(part, CORE)
        if graph is not None:
            call = attention_call(graph)
            assert call is not None, "only layers that hold the call have a core"
            arguments = list(call.inputs())[1:6]
            self._write(graph, graph.return_node(), CORE, [*arguments, call.output()])

    def _open(self, part: Any, what: str) -> Graph | None:
        """The graph of the part, unless it has the statement already because another part shares it."""
        if (_type_name(part), what) in self._done:
            return None
        self._done.add((_type_name(part), what))
        # Every part that runs this code must have what the code reads, or torch reads memory that is not there.
        for other in self._parts:
            if _type_name(other) == _type_name(part):
                other._c._register_attribute(what, torch._C.ListType(torch._C.TensorType.get()), [])
                other._c._register_attribute(_switch(what), torch._C.BoolType.get(), False)
        return part._c._get_method("forward").graph

    def _write(self, graph: Graph, before: GraphNode, what: str, values: Sequence[GraphValue]) -> None:
        graph.setInsertPoint(before)
        wanted = _attribute(graph, _switch(what), torch._C.BoolType.get())
        kept = _attribute(graph, what, torch._C.ListType(torch._C.TensorType.get()))
        graph.insertGraph(getattr(self._statements, what).graph, [wanted, kept, *values])


@contextlib.contextmanager
def recording(parts: Sequence[Any], what: str) -> Iterator[None]:
    """While active, these parts keep what they give; read it with ``recorded`` before it ends."""
    try:
        for part in parts:
            part._c.setattr(_switch(what), True)
        yield
    finally:
        for part in parts:
            part._c.setattr(_switch(what), False)
            part._c.setattr(what, [])


def recorded(part: Any, name: str, what: str, counts: Sequence[int] = (1,)) -> list[Tensor]:
    found: list[Tensor] = part._c.getattr(what)
    if len(found) not in counts:
        raise RunError(f"{name} was expected to run once, but kept {len(found)} tensors; export the model again.")
    return found


def attention_call(graph: Graph) -> GraphNode | None:
    """The one call of ``orthogonal_attention`` in a graph, outside branches and loops."""
    calls = [node for node in graph.findAllNodes("prim::CallFunction", recurse=True) if _is_attention(node)]
    outermost = [node for node in graph.nodes() if node.kind() == "prim::CallFunction" and _is_attention(node)]
    if len(calls) != 1 or len(outermost) != 1 or str(outermost[0].inputsAt(4).type()) != "Tensor":
        return None
    return outermost[0]


def _is_attention(node: GraphNode) -> bool:
    return node.inputsAt(0).type().annotation_str.endswith("osa_runtime.ops.attention.orthogonal_attention")


def _type_name(part: Any) -> str:
    return part._c._type().qualified_name()


def _switch(what: str) -> str:
    return f"{what}_wanted"


def _attribute(graph: Graph, name: str, kind: Any) -> GraphValue:
    node = graph.create("prim::GetAttr", [next(iter(graph.inputs()))], 1)
    node.s_("name", name)
    graph.insertNode(node)
    node.output().setType(kind)
    return node.output()
