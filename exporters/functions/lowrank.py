"""The low-rank form: the exponential through the Gram matrix of F = [Q K], in blocks: F itself is never formed."""

# functions have the names that they have in the graph
from __future__ import annotations

import onnx
import onnxscript
from onnxscript import opset18 as op
from onnxscript import script

from osa_runtime.exporters.functions.chebyshev import chebyshev_functions
from osa_runtime.exporters.functions.choice import FunctionChoice, osa
from osa_runtime.exporters.functions.scaling import limits_of
from osa_runtime.ops.coefficients import (
    FARTHEST,
    FOUR_LN2,
    FOURTHS_MARGIN,
    MOST_DENSE_ENTRIES,
    MOST_DENSE_TOKENS,
    NEAR_REACH,
    TINY_SQUARE,
)
from osa_runtime.ops.scaling import reach


@script(osa, default_opset=op)
def Sheared(q, k):
    """K − Q·diag(x), x_j = ⟨q_j, k_j⟩/⟨q_j, q_j⟩: S is the same, and K loses what is parallel to Q."""
    length = op.ReduceSumSquare(q, op.Constant(value_ints=[-2]))
    parallel = op.ReduceSum(q * k, op.Constant(value_ints=[-2]))
    zero = op.CastLike(0.0, q)
    x = op.Where(length > zero, parallel / op.Where(length > zero, length, op.CastLike(1.0, q)), zero)
    return k - q * x


@script(osa, default_opset=op)
def MeanOfDiagonal(x, size):
    """The mean of the diagonal of square matrices of this size, as (…, 1, 1).

    A sum of products with the identity: tract and TVM have no Slice with a step, which would pick the diagonal.
    """
    identity = op.CastLike(op.EyeLike(op.ConstantOfShape(op.Concat(size, size, axis=0)), dtype=1), x)
    return op.ReduceSum(x * identity, op.Constant(value_ints=[-2, -1])) / op.CastLike(size, x)


@script(osa, default_opset=op)
def CoreNorm(m2):
    """An upper bound of ‖S‖₂ for each entry, as (…, 1, 1), from M².

    M² has the squares −σ² of the d pairs of eigenvalues ±iσ of S, so its trace and tr M⁴ are their mean and their mean
    square, and no value is farther from the mean than √(d − 1) standard deviations. With the blocks [[A, B], [C, D]],
    where D is Aᵀ and B and C are skew, tr M⁴ = 2·Σ(A∘D − B∘C).
    """
    upper, lower = op.Split(m2, axis=-2, num_outputs=2)
    a, b = op.Split(upper, axis=-1, num_outputs=2)
    below_a, below_b = op.Split(lower, axis=-1, num_outputs=2)
    size = op.Shape(a, start=-1)
    pairs = op.CastLike(size, m2)
    zero = op.CastLike(0.0, m2)
    mean = op.Max(op.Neg(osa.MeanOfDiagonal(a, size)), zero)
    products = op.ReduceSum(a * below_b - b * below_a, op.Constant(value_ints=[-2, -1]))
    fourth = op.Max(products / pairs, zero)
    variance = op.Max(fourth - mean * mean, zero)
    return op.Sqrt(mean + op.Sqrt((pairs - 1.0) * variance + fourth * FOURTHS_MARGIN))


@script(osa, default_opset=op)
def GramCore(q_columns, k_columns, q, k, v, c):
    """M = GJ and W = FᵀV for the balanced F = [tQ, K/t], and t (…, 1, 1), a power of two.

    M = c·[[−QᵀK, t²·QᵀQ], [−KᵀK/t², KᵀQ]]. The columns are Qᵀ and Kᵀ; with a factor in them, M and W have it, too.
    """
    qq = op.MatMul(q_columns, q)
    qk = op.MatMul(q_columns, k)
    kk = op.MatMul(k_columns, k)
    size = op.Shape(q, start=-1)
    q_size = op.Abs(osa.MeanOfDiagonal(qq, size))
    k_size = op.Abs(osa.MeanOfDiagonal(kk, size))
    usable = op.And(q_size > 0.0, k_size > 0.0)
    # two logarithms: the ratio may be beyond float32 where S is not
    ratio = op.Where(usable, op.Log(k_size) - op.Log(q_size), op.CastLike(0.0, q))
    t = op.Pow(op.CastLike(2.0, q), op.Floor(ratio / FOUR_LN2 + 0.5))  # tract has no Round in float64
    upper = op.Concat(op.Neg(c) * qk, (c * t * t) * qq, axis=-1)
    lower = op.Concat(op.Neg(c) / (t * t) * kk, c * op.Transpose(qk, perm=[0, 1, 3, 2]), axis=-1)
    w = op.Concat(t * op.MatMul(q_columns, v), op.MatMul(k_columns, v) / t, axis=-2)
    return op.Concat(upper, lower, axis=-2), w, t


@script(osa, default_opset=op)
def Float64Change(q, k, v, c):
    """(e^S − I)·V computed in float64 with K sheared, NaN where the digits are lost; the squarings; what is lost.

    The scale is a factor of the transposed side: ONNX Runtime before 1.26 would fuse a bare transposition with its
    product, and lacks a kernel for that in float64. The factor is −|c|, because it would drop a constant of 1.
    """
    q64 = op.Cast(q, to=onnx.TensorProto.DOUBLE)
    unsheared = op.Cast(k, to=onnx.TensorProto.DOUBLE)
    k64 = osa.Sheared(q64, unsheared)
    c64 = op.Cast(c, to=onnx.TensorProto.DOUBLE)
    factor = op.Neg(op.Abs(c64))
    sign = op.Where(c64 < op.CastLike(0.0, c64), op.CastLike(1.0, c64), op.CastLike(-1.0, c64))
    q_columns = op.Transpose(q64, perm=[0, 1, 3, 2]) * factor
    k_columns = op.Transpose(k64, perm=[0, 1, 3, 2]) * factor
    v64 = op.Cast(v, to=onnx.TensorProto.DOUBLE)
    # a runtime may take float32 for float64, where products with tiny values have no digits: V gets the size 1
    matrix = op.Constant(value_ints=[-2, -1])
    size = op.Max(op.ReduceMax(op.Abs(v64), matrix), op.CastLike(TINY_SQUARE, v64))
    m, w, t = osa.GramCore(q_columns, k_columns, q64, k64, v64 / size, sign)
    m2 = op.MatMul(m, m)
    # a W that is not finite makes its entry NaN: in float32 it may be out of range where V is not
    norm = osa.CoreNorm(m2) + op.ReduceSum(w * w, matrix) * 0.0
    lost = op.Or(osa.IsLostInGram(m, norm), osa.IsLostInTerms(q64, unsheared, c64))
    for_q, for_k, squarings = osa.GramSolution(m, m2, norm, w, t, sign)
    kept = op.Where(lost, op.CastLike(op.Constant(value_float=float("nan")), for_q), for_q)
    change = (op.MatMul(q64, kept) + op.MatMul(k64, for_k)) * size
    return op.Cast(change, to=onnx.TensorProto.FLOAT), squarings, lost


def lowrank_functions(choice: FunctionChoice) -> list[onnx.FunctionProto]:
    limits = limits_of(reach(choice.approximant, "lowrank", False), least=1)

    @script(osa, default_opset=op)
    def GramSolution(m, m2, norm, w, t, c):
        """J·φ₁(M)·W with the balance undone, by scaling and squaring: the factors of Q and of K.

        ‖S‖₂ alone decides the truncation error, although M is not normal: F·J·p(GJ)·Fᵀ = S·p(S) for polynomials.
        """
        square = norm * norm
        factor, squarings = osa.Scaling(square * square * 2.0, op.Constant(value=limits))
        phi = osa.ScaledPhi1Minus1(m, m2, factor)
        a = m * factor
        scaled = w * factor
        y = osa.DoubledPhi1(a + op.MatMul(phi, a), scaled + op.MatMul(phi, scaled), squarings)
        upper, lower = op.Split(y, axis=-2, num_outputs=2)
        return (c * t) * lower, (op.Neg(c) / t) * upper, squarings

    parts = (
        Sheared,
        MeanOfDiagonal,
        CoreNorm,
        GramCore,
        GramSolution,
        Float64Change,
    )
    changes = (_precise_change(choice), _lowrank_change(choice))
    return [*chebyshev_functions(), *(f.to_function_proto() for f in (*parts, *changes))]


def _precise_change(choice: FunctionChoice) -> onnxscript.OnnxFunction:
    """The change in float64, with the dense form as a fallback where the graph has one."""
    if choice.short:

        @script(osa, default_opset=op)
        def PreciseChange(q, k, v, c):
            """(e^S − I)·V through S itself, formed in float64."""
            change, squarings = osa.DenseChange(q, k, v, c)
            return change, squarings

        return PreciseChange

    if choice.has_dense:

        @script(osa, default_opset=op)
        def PreciseChange(q, k, v, c):
            """(e^S − I)·V computed in float64, or through S itself where that loses the digits and S is affordable."""
            gram_change, gram_squarings, lost = osa.Float64Change(q, k, v, c)
            tokens, width = op.Split(op.Shape(q, start=-2), num_outputs=2)
            entries = op.Div(op.Size(q), width) * tokens
            fits = op.And(tokens <= MOST_DENSE_TOKENS, entries <= MOST_DENSE_ENTRIES)
            if op.And(op.Squeeze(fits), op.ReduceMax(op.Cast(lost, to=onnx.TensorProto.FLOAT), keepdims=0) > 0.5):
                change, squarings = osa.DenseChange(q, k, v, c)
            else:
                change = op.Identity(gram_change)
                squarings = op.Identity(gram_squarings)
            return change, squarings

        return PreciseChange

    @script(osa, default_opset=op)
    def PreciseChange(q, k, v, c):
        """(e^S − I)·V computed in float64, and the number of squarings."""
        change, squarings, _lost = osa.Float64Change(q, k, v, c)
        return change, squarings

    return PreciseChange


def _lowrank_change(choice: FunctionChoice) -> onnxscript.OnnxFunction:
    """The low-rank form in steps, by as many squarings as needed, or by a fixed number of them."""
    if choice.steps:
        return _stepping()
    return _straight() if choice.is_fixed else _squaring()


def _stepping() -> onnxscript.OnnxFunction:
    @script(osa, default_opset=op)
    def LowRankChange(q, k, v, c):
        """(e^S − I)·V with S = c(QKᵀ − KQᵀ), in float64 where float32 would lose digits or take many steps."""
        q_columns, k_columns = op.Transpose(q, perm=[0, 1, 3, 2]), op.Transpose(k, perm=[0, 1, 3, 2])
        m, w, t = osa.GramCore(q_columns, k_columns, q, k, v, c)
        m2 = op.MatMul(m, m)
        norm = osa.CoreNorm(m2)
        # written so that a norm of NaN counts as far, where the answer becomes NaN
        near = op.Where(norm <= NEAR_REACH, op.Constant(value_float=0.0), op.Constant(value_float=1.0))
        far = op.Where(norm <= FARTHEST, near, op.Constant(value_float=2.0))
        method = op.ReduceMax(op.Max(far, 2.0 * osa.IsInDoubt(m, w, norm)), keepdims=0)
        if method > 1.5:
            change, squarings = osa.PreciseChange(q, k, v, c)
        else:
            squarings = op.Constant(value_int=0)
            if method > 0.5:
                step_q, step_k = osa.SteppedSolution(m, m2, norm, w, t, c)
                change = op.MatMul(q, step_q) + op.MatMul(k, step_k)
            else:
                near_q, near_k = osa.NearSolution(m, m2, w, t, c)
                change = op.MatMul(q, near_q) + op.MatMul(k, near_k)
        return change, squarings

    return LowRankChange


def _squaring() -> onnxscript.OnnxFunction:
    @script(osa, default_opset=op)
    def LowRankChange(q, k, v, c):
        """(e^S − I)·V with S = c(QKᵀ − KQᵀ), in float64 where float32 would lose digits."""
        q_columns, k_columns = op.Transpose(q, perm=[0, 1, 3, 2]), op.Transpose(k, perm=[0, 1, 3, 2])
        m, w, t = osa.GramCore(q_columns, k_columns, q, k, v, c)
        m2 = op.MatMul(m, m)
        norm = osa.CoreNorm(m2)
        if op.ReduceMax(osa.IsInDoubt(m, w, norm), keepdims=0) > 0.5:
            change, squarings = osa.PreciseChange(q, k, v, c)
        else:
            for_q, for_k, squarings = osa.GramSolution(m, m2, norm, w, t, c)
            change = op.MatMul(q, for_q) + op.MatMul(k, for_k)
        return change, squarings

    return LowRankChange


def _straight() -> onnxscript.OnnxFunction:
    @script(osa, default_opset=op)
    def LowRankChange(q, k, v, c):
        """(e^S − I)·V with S = c(QKᵀ − KQᵀ), in float64 throughout: a graph without branches cannot choose."""
        change, squarings = osa.PreciseChange(q, k, v, c)
        return change, squarings

    return LowRankChange
