"""Softmax models as ONNX Runtime likes them: its own MultiHeadAttention instead of ONNX's Attention.

It takes (batch, tokens, heads·width) and never holds the N × N scores, so it is the fastest on long sequences. The
exported graph turns the projection to (batch, heads, tokens, 3·width), slices it, and turns the result back; without
the turns the slices read the projection as it is.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

FUSED, DOMAIN = "MultiHeadAttention", "com.microsoft"
SHAPE = "merged_heads.shape"


class UnknownGraph(Exception):
    """The graph around an Attention is not the one that is known."""


def fuse_attention(model: ModelProto, heads: int) -> ModelProto:
    graph = model.graph
    nodes: list[NodeProto] = []
    superfluous: set[str] = set()
    for node in graph.node:
        if node.op_type == "Attention":
            added, without = _fused(node, list(graph.node), heads)
            nodes += added
            superfluous |= without
        else:
            nodes.append(node)
    if not superfluous:
        raise UnknownGraph("There is no Attention in the graph.")
    del graph.node[:]
    graph.node.extend(node for node in nodes if node.op_type == FUSED or node.output[0] not in superfluous)
    graph.initializer.append(numpy_helper.from_array(np.array([0, 0, -1]), SHAPE))  # 0: the axis as it is
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return model


def _fused(attention: NodeProto, nodes: list[NodeProto], heads: int) -> tuple[list[NodeProto], set[str]]:
    """The nodes instead of an Attention, and the outputs of those that are not needed any more."""
    slices = [_maker(nodes, name, "Slice") for name in attention.input]
    turn = _maker(nodes, slices[0].input[0], "Transpose")
    back = _reader(nodes, attention.output[0], "Transpose")
    merged = _reader(nodes, back.output[0], "Reshape")
    added = []
    for part in slices:
        part.input[0] = turn.input[0]
        added.append(helper.make_node("Reshape", [part.output[0], SHAPE], [f"{part.output[0]}.merged"]))
    inputs = [node.output[0] for node in added]
    settings = {"domain": DOMAIN, "num_heads": heads}
    added.append(helper.make_node(FUSED, inputs, [merged.output[0]], **settings))
    return added, {turn.output[0], back.output[0], merged.output[0]}


def _maker(nodes: list[NodeProto], name: str, operator: str) -> NodeProto:
    return _only([node for node in nodes if name in node.output], operator)


def _reader(nodes: list[NodeProto], name: str, operator: str) -> NodeProto:
    return _only([node for node in nodes if name in node.input], operator)


def _only(found: list[NodeProto], operator: str) -> NodeProto:
    kinds = [node.op_type for node in found]
    if kinds != [operator]:
        raise UnknownGraph(f"Around an Attention there is {', '.join(kinds) or 'nothing'}, expected one {operator}.")
    return found[0]
