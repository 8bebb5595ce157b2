"""ScaledExpm1 and ScaledPhi1Minus1: e^A − I and φ₁(A) − I for a small A, by Taylor or by Padé."""

# functions carry the names they have in the graph
from __future__ import annotations

import onnx
from onnxscript import opset18 as op
from onnxscript import script

from osa_runtime.exporters.functions.choice import number, osa
from osa_runtime.exporters.unrolling import unroll_loop
from osa_runtime.ops.coefficients import PADE_EXP, PADE_INVERSE_STEPS, TAYLOR_EXP, TAYLOR_PHI1


def approximant_functions(approximant: str) -> list[onnx.FunctionProto]:
    if approximant == "pade":
        return _pade()
    return [_taylor("ScaledExpm1", TAYLOR_EXP), _taylor("ScaledPhi1Minus1", TAYLOR_PHI1)]


def _taylor(name: str, table: tuple[float, ...]) -> onnx.FunctionProto:
    x1, x3, x4, x5, x6, x7, y1, y2 = (number(value) for value in table)

    @script(osa, default_opset=op)
    def Polynomial(a, a2):
        """A Taylor polynomial of degree 8 without its constant term, in three products, from A and A²."""
        a4 = op.MatMul(a2, op.CastLike(op.Constant(value=x1), a) * a + a2)
        left = op.CastLike(op.Constant(value=x3), a) * a2 + a4
        right = (
            op.CastLike(op.Constant(value=x5), a) * a
            + op.CastLike(op.Constant(value=x6), a) * a2
            + op.CastLike(op.Constant(value=x7), a) * a4
        )
        low = op.CastLike(op.Constant(value=y1), a) * a + op.CastLike(op.Constant(value=y2), a) * a2
        return low + op.CastLike(op.Constant(value=x4), a) * left + op.MatMul(left, right)

    proto = Polynomial.to_function_proto()
    proto.name = name
    return proto


def _pade() -> list[onnx.FunctionProto]:
    v1, v2, u0, u1 = (number(value) for value in PADE_EXP)

    @script(osa, default_opset=op)
    def PadeParts(a, a2):
        """u(A²), A·u(A²) and q(A)⁻¹ of the [4/4] Padé approximant, the inverse by Newton–Schulz steps from p(A)."""
        size = op.Shape(a, start=-1)
        identity = op.CastLike(op.EyeLike(op.ConstantOfShape(op.Concat(size, size, axis=0))), a)
        factor = op.CastLike(op.Constant(value=u0), a) * identity + op.CastLike(op.Constant(value=u1), a) * a2
        odd = op.MatMul(a, factor)
        even = (
            identity
            + op.CastLike(op.Constant(value=v1), a) * a2
            + op.CastLike(op.Constant(value=v2), a) * op.MatMul(a2, a2)
        )
        denominator = even - odd
        inverse = even + odd
        for _ in range(PADE_INVERSE_STEPS):
            inverse = 2.0 * inverse - op.MatMul(inverse, op.MatMul(denominator, inverse))
        return factor, odd, inverse, identity

    @script(osa, default_opset=op)
    def ScaledExpm1(a, a2):
        """e^A − I by the [4/4] Padé approximant, from A and A²."""
        _factor, odd, inverse, _identity = osa.PadeParts(a, a2)
        return 2.0 * op.MatMul(odd, inverse)

    @script(osa, default_opset=op)
    def ScaledPhi1Minus1(a, a2):
        """φ₁(A) − I by the [4/4] Padé approximant, from A and A²."""
        factor, _odd, inverse, identity = osa.PadeParts(a, a2)
        return 2.0 * op.MatMul(factor, inverse) - identity

    parts = unroll_loop(PadeParts.to_function_proto(), PADE_INVERSE_STEPS)
    return [parts, ScaledExpm1.to_function_proto(), ScaledPhi1Minus1.to_function_proto()]
