"""The core of the low-rank form in float32: φ₁ by Chebyshev polynomials, in steps instead of squarings.

The polynomial is applied to W, half as wide as M, and no power of M but the square is formed. A small norm takes
one step of a short polynomial. A step of the longer one reaches as far as two to three squarings; beyond a few steps
the core is computed in float64, where squaring takes over.
"""

# functions have the names that they have in the graph
from __future__ import annotations

import onnx
from onnx import helper
from onnxscript import opset18 as op
from onnxscript import script

from osa_runtime.exporters.functions.choice import DOMAIN, VERSION, osa
from osa_runtime.ops.coefficients import (
    CHEBYSHEV_EVEN,
    CHEBYSHEV_ODD,
    CHEBYSHEV_REACH,
    FARTHEST,
    NEAR_EVEN,
    NEAR_ODD,
)

FIRST, NEAR_FIRST = CHEBYSHEV_EVEN[0], NEAR_EVEN[0]


@script(osa, default_opset=op)
def NearSolution(m, m2, w, t, c):
    """J·φ₁(M)·W with the balance undone, for norms up to NEAR_REACH: the factors of Q and of K."""
    upper, lower = op.Split(osa.NearPhi1(m2, w, op.MatMul(m, w)), axis=-2, num_outputs=2)
    first = c * NEAR_FIRST
    return (first * t) * lower, (op.Neg(first) / t) * upper


@script(osa, default_opset=op)
def SteppedSolution(m, m2, norm, w, t, c):
    """J·φ₁(M)·W with the balance undone: the factors of Q and of K. NaN where the norm is out of range.

    With k steps, A = M/k and Y = φ₁(A)·W: Y ← Y + φ₁(A)·(W + AY), k − 1 times, is k·φ₁(M)·W. All entries of a batch
    take as many steps as the largest norm needs. y is Y/e₀.
    """
    in_range = norm <= FARTHEST
    largest = op.ReduceMax(op.Where(in_range, norm, op.Constant(value_float=0.0)), keepdims=0)
    steps = op.Max(op.Ceil(largest / CHEBYSHEV_REACH), op.Constant(value_float=1.0))
    step = op.Where(in_range, op.Reciprocal(steps), op.Constant(value_float=float("nan")))
    factor = step / CHEBYSHEV_REACH
    first = step * FIRST
    size = op.Shape(m, start=-1)
    identity = op.EyeLike(op.ConstantOfShape(op.Concat(size, size, axis=0)), dtype=1)
    u = m2 * (factor * factor * 2.0) + identity
    y = osa.ChebyshevPhi1(u, w, op.MatMul(m, w) * factor)
    for _ in range(op.Cast(steps, to=onnx.TensorProto.INT64) - 1):
        further = w + op.MatMul(m, y) * first
        y = y + osa.ChebyshevPhi1(u, further, op.MatMul(m, further) * factor)
    upper, lower = op.Split(y, axis=-2, num_outputs=2)
    return (c * t * first) * lower, (op.Neg(c) * first / t) * upper


def chebyshev_functions() -> list[onnx.FunctionProto]:
    far = _phi1("ChebyshevPhi1", CHEBYSHEV_EVEN, CHEBYSHEV_ODD)
    far.doc_string = "φ₁(A)·W/e₀ for A = R·X from u = 2X² + I, W and XW: Σⱼ uʲ(eⱼ + oⱼX)·W/e₀ by Horner's scheme."
    near = _phi1("NearPhi1", NEAR_EVEN, NEAR_ODD)
    near.doc_string = "φ₁(M)·W/e₀ from u = M², W and XW = MW: Σⱼ uʲ(eⱼ + oⱼM)·W/e₀ by Horner's scheme."
    return [far, near, NearSolution.to_function_proto(), SteppedSolution.to_function_proto()]


def _phi1(name: str, even: tuple[float, ...], odd: tuple[float, ...]) -> onnx.FunctionProto:
    """Horner's scheme in u, written out: y ← (eⱼ₊₁/eⱼ)·uy + W + (oⱼ/eⱼ)·XW.

    Divided by eⱼ, each step has one factor less, and runtimes take that of the product into the product.
    """
    nodes, y = [], ""
    for j in reversed(range(len(even))):
        nodes += [
            helper.make_node("Constant", [], [f"odd_{j}"], value_float=odd[j] / even[j]),
            helper.make_node("Mul", ["xw", f"odd_{j}"], [f"odd_part_{j}"]),
            helper.make_node("Add", ["w", f"odd_part_{j}"], [f"term_{j}"]),
        ]
        if y:
            nodes += [
                helper.make_node("MatMul", ["u", y], [f"product_{j}"]),
                helper.make_node("Constant", [], [f"ratio_{j}"], value_float=even[j + 1] / even[j]),
                helper.make_node("Mul", [f"product_{j}", f"ratio_{j}"], [f"raised_{j}"]),
                helper.make_node("Add", [f"raised_{j}", f"term_{j}"], [f"y_{j}"]),
            ]
        y = f"y_{j}" if y else f"term_{j}"
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, VERSION)]
    return helper.make_function(DOMAIN, name, ["u", "w", "xw"], [y], nodes, opsets)
