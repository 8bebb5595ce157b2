"""OrthogonalAttention itself, for each form, with and without a mask."""

# functions carry the names they have in the graph
from __future__ import annotations

import onnx
from onnxscript import opset18 as op
from onnxscript import script

from osa_runtime.exporters.functions.choice import FunctionChoice, osa

FLOAT = onnx.TensorProto.FLOAT

DESCRIPTION = """exp(S)·V with S = scale·(QKᵀ − KQᵀ): orthogonal self-attention (arXiv 2602.05996).

q, k: (batch, heads, N, d); v: (batch, heads, N, e); scale: a scalar or (heads,). {mask}
Computed in float32 whatever the type of q, k and v. {squarings}
"""
MASKED = "mask: boolean, broadcasts to (batch, heads, N), True for real tokens; padded tokens come out unchanged."


@script(osa, default_opset=op)
def Change(q, k, v, c):
    """(e^S − I)·V: through S while N ≤ 2d, through the Gram matrix of [Q K] beyond."""
    if op.Squeeze(op.Shape(q, start=-2, end=-1)) <= op.Squeeze(op.Shape(q, start=-1)) * 2:
        change = osa.DenseChange(q, k, v, c)
    else:
        change = osa.LowRankChange(q, k, v, c)
    return change


@script(osa, default_opset=op)
def Unmasked(q, k, v, scale):
    v_core = op.Cast(v, to=FLOAT)
    c = op.Unsqueeze(op.Cast(scale, to=FLOAT), op.Constant(value_ints=[-2, -1]))
    return op.CastLike(v_core + osa.Change(op.Cast(q, to=FLOAT), op.Cast(k, to=FLOAT), v_core, c), v)


@script(osa, default_opset=op)
def Masked(q, k, v, scale, mask):
    real = op.Unsqueeze(mask, op.Constant(value_ints=[-1]))
    c = op.Unsqueeze(op.Cast(scale, to=FLOAT), op.Constant(value_ints=[-2, -1]))
    v_core = op.Cast(v, to=FLOAT)
    zero = op.Constant(value_float=0.0)
    q_real = op.Where(real, op.Cast(q, to=FLOAT), zero)
    k_real = op.Where(real, op.Cast(k, to=FLOAT), zero)
    return op.CastLike(v_core + osa.Change(q_real, k_real, op.Where(real, v_core, zero), c), v)


def attention_functions(choice: FunctionChoice) -> list[onnx.FunctionProto]:
    attention = (Masked if choice.masked else Unmasked).to_function_proto()
    attention.name = "OrthogonalAttention"
    count = (
        "As many squarings as ‖S‖ needs."
        if choice.squarings is None
        else f"With {choice.squarings} squarings; NaN where ‖S‖ is beyond their range."
    )
    attention.doc_string = DESCRIPTION.format(mask=MASKED if choice.masked else "", squarings=count)
    if choice.form == "auto":
        return [Change.to_function_proto(), attention]
    for node in attention.node:
        if node.op_type == "Change":
            node.op_type = "DenseChange" if choice.form == "dense" else "LowRankChange"
    return [attention]
