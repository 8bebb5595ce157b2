"""Scaling: how often to halve, and the doubling that undoes it."""

# functions carry the names they have in the graph
from __future__ import annotations

import onnx
from onnxscript import opset18 as op
from onnxscript import script

from osa_runtime.exporters.functions.choice import osa
from osa_runtime.exporters.unrolling import unroll_loop
from osa_runtime.ops.scaling import most_squarings

LOG_2 = 0.6931471805599453
MOST = float(most_squarings(False))


@script(osa, default_opset=op)
def Scaling(norm, theta: float, limit: float):
    """2⁻ˢ for each entry, NaN where the norm is out of range, and s, from the norms (…, 1, 1)."""
    usable = op.Where(norm <= op.CastLike(limit, norm), norm, op.CastLike(0.0, norm))
    ratio = op.ReduceMax(usable, keepdims=0) / op.CastLike(theta, norm)
    steps = op.Ceil(op.Log(ratio) / LOG_2 + 0.00001)
    steps = op.Clip(steps, op.CastLike(0.0, norm), op.CastLike(MOST, norm))
    doublings = op.Pow(op.CastLike(2.0, norm), steps)
    in_range = norm <= op.CastLike(theta, norm) * doublings
    factor = op.Where(in_range, op.Reciprocal(doublings), op.CastLike(op.Constant(value_float=float("nan")), norm))
    return factor, op.Cast(steps, to=onnx.TensorProto.INT64)


@script(osa, default_opset=op)
def DoubledExpm1(e, squarings):
    """e^(2ˢA) − I from E = e^A − I: E ← 2E + E² repeatedly."""
    for _ in range(squarings):
        e = 2.0 * e + op.MatMul(e, e)
    return e


@script(osa, default_opset=op)
def DoubledPhi1(e, y, squarings):
    """2ˢ·φ₁(2ˢA)·W from E = e^A − I and Y = φ₁(A)·W: Y ← 2Y + EY, E ← 2E + E² repeatedly."""
    for _ in range(squarings):
        y = 2.0 * y + op.MatMul(e, y)
        e = 2.0 * e + op.MatMul(e, e)
    return y


def fixed_scaling(squarings: int) -> onnx.FunctionProto:
    doublings = 2.0**squarings

    @script(osa, default_opset=op)
    def Scaling(norm, theta: float, limit: float):  # noqa: ARG001  # the signature of the other
        """2⁻ˢ for each entry, NaN where the norm is out of range, for a fixed s."""
        in_range = norm <= op.CastLike(theta, norm) * doublings
        factor = op.Where(
            in_range, op.CastLike(1.0 / doublings, norm), op.CastLike(op.Constant(value_float=float("nan")), norm)
        )
        return factor, op.Constant(value_int=squarings)

    return Scaling.to_function_proto()


def scaling_functions(squarings: int | None) -> list[onnx.FunctionProto]:
    doubled = [DoubledExpm1.to_function_proto(), DoubledPhi1.to_function_proto()]
    if squarings is None:
        return [Scaling.to_function_proto(), *doubled]
    return [fixed_scaling(squarings), *(unroll_loop(f, squarings) for f in doubled)]
