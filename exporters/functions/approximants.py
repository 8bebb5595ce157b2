"""ScaledExpm1 and ScaledPhi1Minus1: e^A − I and φ₁(A) − I for A = factor·M small, by polynomials or by Padé."""

# functions have the names that they have in the graph
from __future__ import annotations

import onnx
from onnxscript import opset18 as op
from onnxscript import script

from osa_runtime.exporters.functions.choice import number, osa
from osa_runtime.exporters.unrolling import unroll_loop
from osa_runtime.ops.coefficients import (
    CHEBYSHEV_EXP,
    PADE_EXP,
    PADE_INVERSE_STEPS,
    TAYLOR_PHI1,
    Eight,
    in_few_passes,
)


def approximant_functions(approximant: str) -> list[onnx.FunctionProto]:
    if approximant == "pade":
        return _pade()
    return [_polynomial("ScaledExpm1", CHEBYSHEV_EXP), _polynomial("ScaledPhi1Minus1", TAYLOR_PHI1)]


def _polynomial(name: str, table: Eight) -> onnx.FunctionProto:
    g1, g2, r_left, r_t, r_a, y_left, y_t, y_a = (number(value) for value in in_few_passes(table))

    @script(osa, default_opset=op)
    def Polynomial(m, m2, factor):
        """A polynomial of degree 8 in A = factor·M without its constant term, in three products with that of M²."""
        a = m * (factor * op.CastLike(op.Constant(value=g1), m))
        a2 = m2 * (factor * factor * op.CastLike(op.Constant(value=g2), m))
        t = a + a2
        left = op.MatMul(a2, t) + a2
        right = (
            op.CastLike(op.Constant(value=r_left), m) * left
            + op.CastLike(op.Constant(value=r_t), m) * t
            + op.CastLike(op.Constant(value=r_a), m) * a
        )
        low = (
            op.CastLike(op.Constant(value=y_left), m) * left
            + op.CastLike(op.Constant(value=y_t), m) * t
            + op.CastLike(op.Constant(value=y_a), m) * a
        )
        return op.MatMul(left, right) + low

    proto = Polynomial.to_function_proto()
    proto.name = name
    return proto


def _pade() -> list[onnx.FunctionProto]:
    v1, v2, u0, u1 = (number(value) for value in PADE_EXP)

    @script(osa, default_opset=op)
    def PadeParts(a, a2):
        """u(A²), A·u(A²) and q(A)⁻¹ of the [4/4] Padé approximant, the inverse by Newton–Schulz steps from p(A)."""
        size = op.Shape(a, start=-1)
        identity = op.CastLike(op.EyeLike(op.ConstantOfShape(op.Concat(size, size, axis=0)), dtype=1), a)
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
    def ScaledExpm1(m, m2, factor):
        """e^A − I by the [4/4] Padé approximant."""
        a = m * factor
        a2 = m2 * (factor * factor)
        _factor, odd, inverse, _identity = osa.PadeParts(a, a2)
        return 2.0 * op.MatMul(odd, inverse)

    @script(osa, default_opset=op)
    def ScaledPhi1Minus1(m, m2, factor):
        """φ₁(A) − I by the [4/4] Padé approximant."""
        a = m * factor
        a2 = m2 * (factor * factor)
        even, _odd, inverse, identity = osa.PadeParts(a, a2)
        return 2.0 * op.MatMul(even, inverse) - identity

    parts = unroll_loop(PadeParts.to_function_proto(), PADE_INVERSE_STEPS)
    return [parts, ScaledExpm1.to_function_proto(), ScaledPhi1Minus1.to_function_proto()]
