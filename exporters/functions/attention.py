"""OrthogonalAttention itself, for each form, with and without a mask."""

# functions have the names that they have in the graph
from __future__ import annotations

import onnx
from onnxscript import opset18 as op
from onnxscript import script

from osa_runtime.exporters.functions.choice import FunctionChoice, osa

FLOAT = onnx.TensorProto.FLOAT

DESCRIPTION = """exp(S)·V with S = scale·(QKᵀ − KQᵀ): orthogonal self-attention (arXiv 2602.05996).

q, k: (batch, heads, N, d); v: (batch, heads, N, e); scale: a scalar or (heads,). {mask}
{types} {squarings}
"""
MASKED = "mask: boolean, broadcasts to (batch, heads, N), True for real tokens; padded tokens are returned unchanged."


@script(osa, default_opset=op)
def Change(q, k, v, c):
    """(e^S − I)·V: through S while N ≤ 2d, through the Gram matrix of [Q K] beyond."""
    excess = op.ReduceSum(op.Shape(q, start=-2) * op.Constant(value_ints=[1, -2]), keepdims=0)
    if excess <= 0:
        change, squarings = osa.DenseChange(q, k, v, c)
    else:
        change, squarings = osa.LowRankChange(q, k, v, c)
    return change, squarings


@script(osa, default_opset=op)
def Unmasked(q, k, v, scale):
    change, squarings = osa.Change(q, k, v, op.Unsqueeze(scale, op.Constant(value_ints=[-2, -1])))
    return v + change, squarings


@script(osa, default_opset=op)
def Masked(q, k, v, scale, mask):
    real = op.Unsqueeze(mask, op.Constant(value_ints=[-1]))
    zero = op.Constant(value_float=0.0)
    q_real = op.Where(real, q, zero)
    k_real = op.Where(real, k, zero)
    c = op.Unsqueeze(scale, op.Constant(value_ints=[-2, -1]))
    change, squarings = osa.Change(q_real, k_real, op.Where(real, v, zero), c)
    return v + change, squarings


@script(osa, default_opset=op)
def UnmaskedOfAnyType(q, k, v, scale):
    q32, k32, v32 = op.Cast(q, to=FLOAT), op.Cast(k, to=FLOAT), op.Cast(v, to=FLOAT)
    attended, squarings = osa.Float32Attention(q32, k32, v32, op.Cast(scale, to=FLOAT))
    return op.CastLike(attended, v), squarings


@script(osa, default_opset=op)
def MaskedOfAnyType(q, k, v, scale, mask):
    q32, k32, v32 = op.Cast(q, to=FLOAT), op.Cast(k, to=FLOAT), op.Cast(v, to=FLOAT)
    attended, squarings = osa.Float32Attention(q32, k32, v32, op.Cast(scale, to=FLOAT), mask)
    return op.CastLike(attended, v), squarings


def attention_functions(choice: FunctionChoice) -> list[onnx.FunctionProto]:
    core = (Masked if choice.masked else Unmasked).to_function_proto()
    definitions = [core]
    if choice.any_type:
        core.name, core.doc_string = "Float32Attention", "OrthogonalAttention for q, k, v and scale in float32."
        definitions.append((MaskedOfAnyType if choice.masked else UnmaskedOfAnyType).to_function_proto())
    definitions[-1].name, definitions[-1].doc_string = "OrthogonalAttention", _description(choice)
    if not choice.counted:
        definitions[-1].output.pop()
    if choice.form == "auto":
        return [Change.to_function_proto(), *definitions]
    for node in core.node:
        if node.op_type == "Change":
            node.op_type = "DenseChange" if choice.form == "dense" else "LowRankChange"
    return definitions


def _description(choice: FunctionChoice) -> str:
    count = (
        "As many squarings as ‖S‖ needs." + (" Their number is the second output." if choice.counted else "")
        if not choice.is_fixed
        else f"With {choice.squarings} squarings; NaN where ‖S‖ is beyond their range."
        + (" Without float64; NaN where float32 loses the digits." if choice.core == "float32" else "")
    )
    types = "Computed in float32 whatever the type of q, k and v." if choice.any_type else "In float32."
    return DESCRIPTION.format(mask=MASKED if choice.masked else "", types=types, squarings=count)
