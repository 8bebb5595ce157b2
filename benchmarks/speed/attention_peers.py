"""What the operator competes with: the paper's own method in eager, softmax attention, and one large product."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from onnx import ModelProto, NodeProto, TensorProto, helper
from torch import Tensor

from osa_runtime.ops.reference import paper_attention
from speed.attention_inputs import HEADS

SGEMM_SIZE = 1536
IR_VERSION = 10

paper_by_basis = paper_attention  # Theorem 2.1, in the type of the inputs


def dense_exponential(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The exponential of S itself, which may be faster while S is smaller than the core."""
    products = q @ k.mT
    return torch.linalg.matrix_exp(scale * (products - products.mT)) @ v


def attention_operator(width: int) -> ModelProto:
    """ONNX's own Attention, opset 23."""
    return _model([helper.make_node("Attention", ["q", "k", "v"], ["y"])], _by_head(width), 23)


def multi_head_attention(width: int) -> ModelProto:
    """ONNX Runtime's MultiHeadAttention, which never holds the N × N scores of long sequences."""
    where = {"domain": "com.microsoft", "num_heads": HEADS}
    node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], **where)
    return _model([node], ("batch", "tokens", HEADS * width), 18)


def three_products(width: int) -> ModelProto:
    """MatMul, Softmax, MatMul, with the scale on q, the smaller matrix."""
    nodes = [
        helper.make_node("Constant", [], ["scale"], value_float=width**-0.5),
        helper.make_node("Mul", ["q", "scale"], ["scaled"]),
        helper.make_node("Transpose", ["k"], ["columns"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["scaled", "columns"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    return _model(nodes, _by_head(width), 18)


def square_product() -> ModelProto:
    """One product of two large matrices: the rate that nothing made of products can exceed."""
    return _model([helper.make_node("MatMul", ["q", "k"], ["y"])], (SGEMM_SIZE, SGEMM_SIZE), 18, "qk")


def sgemm_flops() -> float:
    return 2.0 * SGEMM_SIZE**3


def _by_head(width: int) -> tuple[str | int, ...]:
    return ("batch", HEADS, "tokens", width)


def _model(nodes: Sequence[NodeProto], shape: tuple[str | int, ...], opset: int, inputs: str = "qkv") -> ModelProto:
    declared = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in inputs]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "peer", declared, [result])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)
