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
def Scaling(norm, theta: float, limit: float, least: float):
    """2⁻ˢ for each entry, NaN where the norm is out of range, and s ≥ least, from the norms (…, 1, 1)."""
    usable = op.Where(norm <= op.CastLike(limit, norm), norm, op.CastLike(0.0, norm))
    ratio = op.ReduceMax(usable, keepdims=0) / op.CastLike(theta, norm)
    steps = op.Ceil(op.Log(ratio) / LOG_2 + 0.00001)
    steps = op.Clip(steps, op.CastLike(least, norm), op.CastLike(MOST, norm))
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
def TwiceIdentity(e):
    size = op.Shape(e, start=-1)
    return op.CastLike(2.0, e) * op.CastLike(op.EyeLike(op.ConstantOfShape(op.Concat(size, size, axis=0))), e)


@script(osa, default_opset=op)
def DoubledPhi1(e, y, squarings):
    """2ˢ·φ₁(2ˢA)·W from E = e^A − I and Y = φ₁(A)·W: K = E + 2I, Y ← KY, E ← KE; the last E is not needed. s ≥ 1."""
    two = osa.TwiceIdentity(e)
    for _ in range(squarings - 1):
        k = e + two
        y = op.MatMul(k, y)
        e = op.MatMul(k, e)
    return op.MatMul(e + two, y)


@script(osa, default_opset=op)
def SteppedPhi1(e, y, squarings):
    """The same with a step for each squaring, to be written out: what nobody reads then falls away."""
    two = osa.TwiceIdentity(e)
    for _ in range(squarings):
        k = e + two
        y = op.MatMul(k, y)
        e = op.MatMul(k, e)
    return y


def fixed_scaling(squarings: int) -> onnx.FunctionProto:
    doublings = 2.0**squarings

    @script(osa, default_opset=op)
    def Scaling(norm, theta: float, limit: float, least: float):  # noqa: ARG001  # the signature of the other
        """2⁻ˢ for each entry, NaN where the norm is out of range, for a fixed s."""
        in_range = norm <= op.CastLike(theta, norm) * doublings
        factor = op.Where(
            in_range, op.CastLike(1.0 / doublings, norm), op.CastLike(op.Constant(value_float=float("nan")), norm)
        )
        return factor, op.Constant(value_int=squarings)

    return Scaling.to_function_proto()


def scaling_functions(squarings: int | None) -> list[onnx.FunctionProto]:
    twice, expm1 = TwiceIdentity.to_function_proto(), DoubledExpm1.to_function_proto()
    if squarings is None:
        return [Scaling.to_function_proto(), twice, expm1, DoubledPhi1.to_function_proto()]
    phi1 = SteppedPhi1.to_function_proto()
    phi1.name, phi1.doc_string = "DoubledPhi1", DoubledPhi1.function_ir.doc_string
    return [fixed_scaling(squarings), twice, unroll_loop(expm1, squarings), unroll_loop(phi1, squarings)]
