"""The low-rank form: the exponential through the Gram matrix of F = [Q K]."""

# functions carry the names they have in the graph
from __future__ import annotations

import onnx
from onnxscript import opset18 as op
from onnxscript import script

from osa_runtime.exporters.functions.choice import FunctionChoice, osa
from osa_runtime.ops.coefficients import FLOAT32_AMPLIFICATION, FLOAT64_AMPLIFICATION
from osa_runtime.ops.scaling import most_squarings, reach


@script(osa, default_opset=op)
def Sheared(f):
    """[Q K] with K ← K − Q·diag(x), x_j = ⟨q_j, k_j⟩/⟨q_j, q_j⟩: S is the same, and K loses what is parallel to Q."""
    q, k = op.Split(f, axis=-1, num_outputs=2)
    length = op.ReduceSumSquare(q, op.Constant(value_ints=[-2]))
    parallel = op.ReduceSum(q * k, op.Constant(value_ints=[-2]))
    zero = op.CastLike(0.0, f)
    x = op.Where(length > zero, parallel / op.Where(length > zero, length, op.CastLike(1.0, f)), zero)
    return op.Concat(q, k - q * x, axis=-1)


@script(osa, default_opset=op)
def Float64Change(f, v, c):
    """(e^S − I)·V from F = [Q K], computed in float64."""
    f64 = osa.Sheared(op.Cast(f, to=onnx.TensorProto.DOUBLE))
    c64 = op.Cast(c, to=onnx.TensorProto.DOUBLE)
    m, w, balance = osa.GramCore(f64, op.Cast(v, to=onnx.TensorProto.DOUBLE), c64)
    m2 = op.MatMul(m, m)
    y = osa.GramSolution(m, m2, w, balance, c64)
    sound = osa.Amplification(m, m2) <= op.CastLike(FLOAT64_AMPLIFICATION, m)
    kept = op.Where(sound, y, op.CastLike(op.Constant(value_float=float("nan")), y))
    return op.Cast(op.MatMul(f64, kept), to=onnx.TensorProto.FLOAT)


@script(osa, default_opset=op)
def GramCore(f, v, c):
    """M = GJ and W = FᵀV for the balanced F = [tQ, K/t], and the balance (…, 2d, 1), t a power of two."""
    transposed = op.Transpose(f, perm=[0, 1, 3, 2])
    g = op.MatMul(transposed, f)
    d = op.Shape(f, start=-1) / 2
    left, right = op.Split(g, axis=-1, num_outputs=2)
    q_size = op.ReduceL1(op.Slice(left, [0], d, [-2]), op.Constant(value_ints=[-2, -1]))
    k_size = op.ReduceL1(
        op.Slice(right, d, op.Constant(value_ints=[9223372036854775807]), [-2]), op.Constant(value_ints=[-2, -1])
    )
    usable = op.And(q_size > 0.0, k_size > 0.0)
    ratio = op.Where(usable, k_size / q_size, op.CastLike(1.0, f))
    t = op.Pow(op.CastLike(2.0, f), op.Round(op.Log(ratio) / 2.772588722239781))
    column = op.Concat(op.Constant(value_ints=[1, 1]), d, op.Constant(value_ints=[1]), axis=0)
    balance = op.Concat(op.Expand(t, column), op.Expand(op.Reciprocal(t), column), axis=-2)
    m = c * balance * op.Concat(op.Neg(right) / t, left * t, axis=-1)
    return m, balance * op.MatMul(transposed, v), balance


@script(osa, default_opset=op)
def Amplification(m, m2):
    """max_j ‖M e_j‖² / max(‖M² e_j‖^½, 1) for each entry: what a rounding of G is multiplied by. (…, 1, 1)"""
    square = op.ReduceSumSquare(m, op.Constant(value_ints=[-2]))
    square2 = op.ReduceSumSquare(m2, op.Constant(value_ints=[-2]))
    return op.ReduceMax(square / op.Max(op.Sqrt(op.Sqrt(square2)), op.CastLike(1.0, m)), op.Constant(value_ints=[-1]))


def lowrank_functions(choice: FunctionChoice) -> list[onnx.FunctionProto]:
    reached = reach(choice.approximant, "lowrank", False)
    most = reached * 2.0 ** most_squarings(False)

    @script(osa, default_opset=op)
    def GramSolution(m, m2, w, balance, c):
        """J·φ₁(M)·W with the balance undone, by scaling and squaring."""
        first = op.ReduceMax(op.ReduceL1(m, op.Constant(value_ints=[-2])), op.Constant(value_ints=[-1]))
        second = op.ReduceMax(op.ReduceL1(m2, op.Constant(value_ints=[-2])), op.Constant(value_ints=[-1]))
        factor, squarings = osa.Scaling(op.Min(first, op.Sqrt(second)), theta=reached, limit=most)
        a = m * factor
        phi = osa.ScaledPhi1Minus1(a, m2 * (factor * factor))
        scaled = w * factor
        y = osa.DoubledPhi1(a + op.MatMul(phi, a), scaled + op.MatMul(phi, scaled), squarings)
        upper, lower = op.Split(y, axis=-2, num_outputs=2)
        return c * balance * op.Concat(lower, op.Neg(upper), axis=-2)

    change = BranchingLowRankChange if choice.squarings is None else StraightLowRankChange
    parts = (Sheared, GramCore, Amplification, GramSolution, Float64Change, change)
    functions = [f.to_function_proto() for f in parts]
    functions[-1].name = "LowRankChange"
    return functions


@script(osa, default_opset=op)
def BranchingLowRankChange(q, k, v, c):
    """(e^S − I)·V with S = c(QKᵀ − KQᵀ), in float64 where float32 would lose digits."""
    f = op.Concat(q, k, axis=-1)
    m, w, balance = osa.GramCore(f, v, c)
    m2 = op.MatMul(m, m)
    in_doubt = op.Cast(osa.Amplification(m, m2) > FLOAT32_AMPLIFICATION, to=onnx.TensorProto.FLOAT)
    if op.ReduceMax(in_doubt, keepdims=0) > 0.5:
        change = osa.Float64Change(f, v, c)
    else:
        change = op.MatMul(f, osa.GramSolution(m, m2, w, balance, c))
    return change


@script(osa, default_opset=op)
def StraightLowRankChange(q, k, v, c):
    """(e^S − I)·V with S = c(QKᵀ − KQᵀ), in float64 throughout: a graph without branches cannot choose."""
    return osa.Float64Change(op.Concat(q, k, axis=-1), v, c)
