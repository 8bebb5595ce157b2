"""The dense form: the exponential of S as an N×N matrix."""

# functions have the names that they have in the graph
from __future__ import annotations

import onnx
from onnxscript import opset18 as op
from onnxscript import script

from osa_runtime.exporters.functions.choice import FunctionChoice, osa
from osa_runtime.exporters.functions.scaling import limits_of
from osa_runtime.ops.scaling import reach


@script(osa, default_opset=op)
def SkewFourths(s2):
    """‖S²‖_F², which is at least 2·‖S‖₂⁴, for each skew matrix: (…, 1, 1)."""
    return op.ReduceSum(s2 * s2, op.Constant(value_ints=[-2, -1]))


@script(osa, default_opset=op)
def SkewExponential(s):
    """e^S of skew matrices (batch, heads, n, n): orthogonal, with determinant 1."""
    size = op.Shape(s, start=-1)
    identity = op.CastLike(op.EyeLike(op.ConstantOfShape(op.Concat(size, size, axis=0)), dtype=1), s)
    expm1, _squarings = osa.SkewExpm1(s)
    return identity + expm1


@script(osa, default_opset=op)
def DenseChange(q, k, v, c):
    """(e^S − I)·V with S = c(QKᵀ − KQᵀ), and the number of squarings.

    S is formed in float64, where it may be small by cancellation. NaN where even that loses its digits.
    """
    q64 = op.Cast(q, to=onnx.TensorProto.DOUBLE)
    k64 = op.Cast(k, to=onnx.TensorProto.DOUBLE)
    c64 = op.Cast(c, to=onnx.TensorProto.DOUBLE)
    lost = osa.IsLostInTerms(q64, k64, c64)
    sound = op.Where(lost, op.CastLike(op.Constant(value_float=float("nan")), c64), c64)
    half = op.MatMul(q64, op.Transpose(k64, perm=[0, 1, 3, 2]) * sound)
    s = op.Cast(half - op.Transpose(half, perm=[0, 1, 3, 2]), to=onnx.TensorProto.FLOAT)
    expm1, squarings = osa.SkewExpm1(s)
    return op.MatMul(expm1, v), squarings


def dense_functions(choice: FunctionChoice) -> list[onnx.FunctionProto]:
    limits = limits_of(reach(choice.approximant, "dense", False))

    @script(osa, default_opset=op)
    def SkewExpm1(s):
        """e^S − I of skew matrices, by scaling and squaring, and the number of squarings."""
        s2 = op.MatMul(s, s)
        factor, squarings = osa.Scaling(osa.SkewFourths(s2), op.Constant(value=limits))
        return osa.DoubledExpm1(osa.ScaledExpm1(s, s2, factor), squarings), squarings

    return [f.to_function_proto() for f in (SkewFourths, SkewExpm1, SkewExponential, DenseChange)]
