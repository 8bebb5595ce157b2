"""ScaledExpm1 and ScaledPhi1Minus1: e^A − I and φ₁(A) − I for A = factor·M small, by polynomials or by Padé."""

# functions carry the names they have in the graph
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
)


def approximant_functions(approximant: str) -> list[onnx.FunctionProto]:
    if approximant == "pade":
        return _pade()
    return [_polynomial("ScaledExpm1", CHEBYSHEV_EXP), _polynomial("ScaledPhi1Minus1", TAYLOR_PHI1)]


def _polynomial(name: str, table: tuple[float, ...]) -> onnx.FunctionProto:
    one, two, in_right, in_low = _in_few_passes(table)
    r_left, r_t, r_a = (number(value) for value in in_right)
    y_left, y_t, y_a = (number(value) for value in in_low)
    g1, g2 = number(one), number(two)

    @script(osa, default_opset=op)
    def Polynomial(m, m2, factor):
        """A polynomial of degree 8 in A = factor·M without its constant term, in three products."""
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


def _in_few_passes(table: tuple[float, ...]) -> tuple[float, float, tuple[float, ...], tuple[float, ...]]:
    """The table's scheme rewritten for runtimes that pass over a matrix for every sum and every factor.

    With a = g₁A, a₂ = g₂A², g₂ = 1/x₃ and g₁ = x₁/x₃, the scaling of A and A² takes in two of the factors:
        t = a + a₂,   left = a₂t + a₂ = (A₄ + x₃A²)/x₃²,   p = left·right + low
    with right and low combinations of left, t and a. Returns g₁, g₂ and the two sets of coefficients.
    """
    x1, x3, x4, x5, x6, x7, y1, y2 = table
    g1, g2, square = x1 / x3, 1 / x3, 1 / x3**2
    rest = x6 - x7 * x3
    right = (x7 / square**2, rest / (g2 * square), (x5 - rest * x1) / (g1 * square))
    low = (x4 / square, y2 / g2, (y1 - y2 * x1) / g1)
    return g1, g2, right, low


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
