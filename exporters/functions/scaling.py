"""Scaling: the number of halvings, and the doubling that undoes them."""

# functions have the names that they have in the graph
from __future__ import annotations

import onnx
from onnxscript import opset18 as op
from onnxscript import script

from osa_runtime.exporters.functions.choice import osa
from osa_runtime.exporters.unrolling import unroll_loop
from osa_runtime.ops.scaling import largest_norm, most_squarings

MOST_SQUARINGS = most_squarings(False)
FARTHEST_FOURTHS = 2.0 * largest_norm(1.0, -1, False) ** 4


@script(osa, default_opset=op)
def Scaling(fourths, limits):
    """2⁻ˢ for each entry, NaN where it is out of range, and s, from f = 2·norm⁴ (…, 1, 1) of each.

    s is the number of limits that the largest f up to the farthest exceeds.
    """
    in_range = fourths <= op.CastLike(FARTHEST_FOURTHS, fourths)
    largest = op.ReduceMax(op.Where(in_range, fourths, op.CastLike(0.0, fourths)), keepdims=0)
    exceeded = op.Cast(largest > op.CastLike(limits, fourths), to=onnx.TensorProto.INT64)
    squarings = op.ReduceSum(exceeded, keepdims=0)
    halvings = op.Pow(op.CastLike(0.5, fourths), op.CastLike(squarings, fourths))
    factor = op.Where(in_range, halvings, op.CastLike(op.Constant(value_float=float("nan")), fourths))
    return factor, squarings


def fourth_power(norm: float) -> float:
    return 2.0 * norm**4


def limits_of(theta: float, least: int = 0) -> onnx.TensorProto:
    """2·norm⁴ up to which 0, 1, 2 … squarings are enough; below ``least`` a limit that everything exceeds."""
    limits = [fourth_power(theta * 2.0**s) if s >= least else -1.0 for s in range(MOST_SQUARINGS)]
    return onnx.helper.make_tensor("limits", onnx.TensorProto.DOUBLE, [MOST_SQUARINGS], limits)


@script(osa, default_opset=op)
def DoubledExpm1(e, squarings):
    """e^(2ˢA) − I from E = e^A − I: E ← 2E + E² repeatedly."""
    for _ in range(squarings):
        e = 2.0 * e + op.MatMul(e, e)
    return e


@script(osa, default_opset=op)
def TwiceIdentity(e):
    size = op.Shape(e, start=-1)
    return op.CastLike(2.0, e) * op.CastLike(op.EyeLike(op.ConstantOfShape(op.Concat(size, size, axis=0)), dtype=1), e)


@script(osa, default_opset=op)
def DoubledPhi1(e, y, squarings):
    """2ˢ·φ₁(2ˢA)·W from E = e^A − I and Y = φ₁(A)·W: [E Y] ← (E + 2I)·[E Y]; the last E is not needed. s ≥ 1."""
    two = osa.TwiceIdentity(e)
    widths = op.Concat(op.Shape(e, start=-1), op.Shape(y, start=-1), axis=0)
    both = op.Concat(e, y, axis=-1)
    for _ in range(squarings - 1):
        left, _right = op.Split(both, widths, axis=-1)
        both = op.MatMul(left + two, both)
    last_e, last_y = op.Split(both, widths, axis=-1)
    return op.MatMul(last_e + two, last_y)


def _phi1_to_unroll() -> onnx.FunctionProto:
    """DoubledPhi1 with a step for each squaring: unrolling drops the last E."""

    @script(osa, default_opset=op)
    def DoubledPhi1(e, y, squarings):
        """2ˢ·φ₁(2ˢA)·W from E = e^A − I, Y = φ₁(A)·W: K = E + 2I, Y ← KY, E ← KE; the last E is not needed. s ≥ 1."""
        two = osa.TwiceIdentity(e)
        for _ in range(squarings):
            k = e + two
            y = op.MatMul(k, y)
            e = op.MatMul(k, e)
        return y

    return DoubledPhi1.to_function_proto()


def fixed_scaling(squarings: int, theta: float) -> onnx.FunctionProto:
    halvings, most = 2.0**-squarings, fourth_power(largest_norm(theta, squarings, False))

    @script(osa, default_opset=op)
    def Scaling(fourths, limits):  # noqa: ARG001  # the signature of the other
        """2⁻ˢ for each entry, NaN where the norm is out of range, for a fixed s."""
        in_range = fourths <= op.CastLike(most, fourths)
        nan = op.CastLike(op.Constant(value_float=float("nan")), fourths)
        return op.Where(in_range, op.CastLike(halvings, fourths), nan), op.Constant(value_int=squarings)

    return Scaling.to_function_proto()


def scaling_functions(squarings: str | int, theta: float) -> list[onnx.FunctionProto]:
    """``theta`` is for a fixed number alone; otherwise each call has its own."""
    twice, expm1 = TwiceIdentity.to_function_proto(), DoubledExpm1.to_function_proto()
    if not isinstance(squarings, int):
        return [Scaling.to_function_proto(), twice, expm1, DoubledPhi1.to_function_proto()]
    phi1 = unroll_loop(_phi1_to_unroll(), squarings)
    return [fixed_scaling(squarings, theta), twice, unroll_loop(expm1, squarings), phi1]
