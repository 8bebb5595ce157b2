"""The call of orthogonal attention inside a TorchScript layer as a function of its own."""

from __future__ import annotations

from typing import Any

import torch

from osa_runtime.verification.inside.script_calls import Graph, GraphValue
from osa_runtime.verification.inside.script_recording import attention_call

# The places of q, k, v and mask among the inputs of the call; the function itself comes first, the scale fourth.
GIVEN = {"q": 1, "k": 2, "v": 3, "mask": 5}


def attend_function(part: Any) -> Any:
    """(layer, q, k, v, mask) → exp(S)·v, from a copy of the layer's code; scale and options stay the layer's own."""
    graph = part._c._get_method("forward").graph.copy()
    call = attention_call(graph)
    assert call is not None, "only layers that hold the call can attend"
    old = list(graph.inputs())[1:]
    for name, place in GIVEN.items():
        value = graph.addInput(f"given_{name}")
        value.setType(_optional_tensor() if name == "mask" else torch._C.TensorType.get())
        call.replaceInput(place, value)
    graph.eraseOutput(0)
    graph.registerOutput(call.output())
    _drop_unneeded(graph)
    for _ in old:
        graph.eraseInput(1)
    return torch._C._create_function_from_graph("attend", graph)


def _drop_unneeded(graph: Graph) -> None:
    """Also what has side effects, such as the projections of an input that is not there."""
    needed = {value.debugName() for value in graph.outputs()}
    for node in reversed(list(graph.nodes())):
        if needed.isdisjoint(value.debugName() for value in node.outputs()):
            node.destroy()
        else:
            needed.update(value.debugName() for value in _read(node))


def _read(node: Any) -> list[GraphValue]:
    """What a node reads, also inside its branches."""
    inner = [value for block in node.blocks() for value in block.outputs()]
    inner += [value for block in node.blocks() for part in block.nodes() for value in _read(part)]
    return [*node.inputs(), *inner]


def _optional_tensor() -> Any:
    return torch._C.OptionalType(torch._C.TensorType.get())
