"""The cost of rounding: its amplification by each form, and the limits up to which a result has its digits."""

# functions have the names that they have in the graph
from __future__ import annotations

import onnx
import onnxscript
from onnxscript import opset18 as op
from onnxscript import script

from osa_runtime.exporters.functions.choice import osa
from osa_runtime.ops.coefficients import (
    FLOAT32_AMPLIFICATION,
    FLOAT64_AMPLIFICATION,
    LARGEST_AMPLIFICATION_ALONE,
    LARGEST_TERMS,
    LARGEST_TERMS_ALONE,
    TINY_SQUARE,
)

LARGEST_TERMS_SQUARED = LARGEST_TERMS**2
LARGEST_FLOAT32_TERMS_SQUARED = (LARGEST_TERMS * 2.0**-29) ** 2  # the ratio of the two precisions
BELOW_FLOAT32 = 2.0**-40


@script(osa, default_opset=op)
def SpectralEstimate(m):
    """‖M‖₂ for each entry by three power steps from four fixed vectors, sin(i(i + j)): (…, 1, 1)."""
    size = op.Squeeze(op.Shape(m, start=-1))
    i = op.CastLike(op.Unsqueeze(op.Range(1, size + 1, 1), op.Constant(value_ints=[-1])), m)
    x = op.Sin(i * (i + op.CastLike(op.Constant(value_floats=[0.0, 1.0, 2.0, 3.0]), m)))
    mx = op.MatMul(m, x)
    # y may have any length. The factor keeps it in range, and each transposition from being fused (see Float64Change).
    tiny = op.CastLike(TINY_SQUARE, m)
    factor = op.Reciprocal(op.Max(op.ReduceMax(op.Abs(mx), op.Constant(value_ints=[-2, -1])), tiny))
    rows = op.MatMul(op.Transpose(mx, perm=[0, 1, 3, 2]) * factor, m)
    y = op.Transpose(rows, perm=[0, 1, 3, 2]) * factor
    column = op.Constant(value_ints=[-2])
    squares = op.ReduceSumSquare(op.MatMul(m, y), column) / op.Max(op.ReduceSumSquare(y, column), tiny)
    return op.Sqrt(op.ReduceMax(squares, op.Constant(value_ints=[-1])))


@script(osa, default_opset=op)
def GramAmplification(m, norm):
    """‖M‖₂³ / max(‖S‖, 1): the low-rank form loses about 0.1 eps of its precision for each unit. (…, 1, 1)"""
    estimate = osa.SpectralEstimate(m)
    return estimate * estimate * estimate / op.Max(norm, op.CastLike(1.0, m))


@script(osa, default_opset=op)
def IsInDoubt(m, w, norm):
    """1 where float32 loses digits or range, else 0; written so that NaN is in doubt. (…, 1, 1)

    W may be too large, or too small unless M vanishes.
    """
    size = op.ReduceSumSquare(w, op.Constant(value_ints=[-2, -1]))
    amplification = osa.GramAmplification(m, norm)
    sound = amplification + size * 0.0 <= FLOAT32_AMPLIFICATION
    tiny = op.And(size < TINY_SQUARE, amplification > 0.0)
    return op.Where(op.And(sound, op.Not(tiny)), op.Constant(value_float=0.0), op.Constant(value_float=1.0))


@script(osa, default_opset=op)
def IsLostInGram(m, norm):
    """True where the Gram matrix in float64 has lost digits of a float32 result, but not for NaN. (…, 1, 1)

    Beyond ‖S‖ of 8 every method loses in proportion to it; beyond 32 the error of degenerate M grows like ‖M‖₂³ alone.
    """
    one = op.CastLike(1.0, m)
    growth = op.Min(op.Max(norm * op.CastLike(0.125, m), one), op.CastLike(4.0, m))
    digits = op.CastLike(FLOAT64_AMPLIFICATION, m)
    limit = op.Where(osa.IsDouble(norm + one), growth * digits, op.CastLike(FLOAT32_AMPLIFICATION, m))
    return osa.GramAmplification(m, norm) > limit


@script(osa, default_opset=op)
def IsDouble(x):
    """True if a runtime computes float64 as such, for positive x; some take float32 for it without saying so."""
    return (x + x * op.CastLike(BELOW_FLOAT32, x)) - x > op.CastLike(0.0, x)


@script(osa, default_opset=op)
def IsLostInTerms(q, k, c):
    """True where S = c(QKᵀ − KQᵀ), with an error of eps·|c|·‖Q‖·‖K‖ in float64, lacks digits of a float32 result."""
    matrix = op.Constant(value_ints=[-2, -1])
    q_square = op.ReduceSum(q * q, matrix)
    squares = q_square * op.ReduceSum(k * k, matrix) * (c * c)
    precise = osa.IsDouble(q_square + op.CastLike(1.0, q))
    limit = op.Where(precise, op.CastLike(LARGEST_TERMS_SQUARED, q), op.CastLike(LARGEST_FLOAT32_TERMS_SQUARED, q))
    return squares > limit


def rounding_functions(core: str) -> list[onnx.FunctionProto]:
    limits = _limits_of_float32() if core == "float32" else (IsDouble, IsLostInGram, IsLostInTerms)
    return [f.to_function_proto() for f in (SpectralEstimate, GramAmplification, IsInDoubt, *limits)]


def _limits_of_float32() -> tuple[onnxscript.OnnxFunction, ...]:
    """The limits of a core that has float32 alone."""

    @script(osa, default_opset=op)
    def IsLostInGram(m, norm):
        """True where the Gram matrix in float32 has lost more digits than a graph in float32 may, but not for NaN."""
        return osa.GramAmplification(m, norm) > LARGEST_AMPLIFICATION_ALONE

    @script(osa, default_opset=op)
    def Length(x):
        """The Frobenius norm of each matrix (…, 1, 1), also where its square is out of range."""
        matrix = op.Constant(value_ints=[-2, -1])
        largest = op.Max(op.ReduceMax(op.Abs(x), matrix), op.CastLike(TINY_SQUARE, x))
        part = x / largest
        return op.Sqrt(op.ReduceSum(part * part, matrix)) * largest

    @script(osa, default_opset=op)
    def IsLostInTerms(q, k, c):
        """True where S = c(QKᵀ − KQᵀ), with an error of eps·|c|·‖Q‖·‖K‖, has lost too many digits."""
        return osa.Length(q) * op.Abs(c) * osa.Length(k) > LARGEST_TERMS_ALONE

    return Length, IsLostInGram, IsLostInTerms
