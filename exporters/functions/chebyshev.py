"""The core of the low-rank form in float32: φ₁ by a Chebyshev polynomial, in steps instead of squarings.

The polynomial is applied to W, half as wide as M, and no power of M but the square is formed. One step reaches as far
as two to three squarings; beyond a few steps the core is left to Float64Change, where squaring takes over.
"""

# functions carry the names they have in the graph
from __future__ import annotations

import onnx
from onnx import helper
from onnxscript import opset18 as op
from onnxscript import script

from osa_runtime.exporters.functions.choice import DOMAIN, VERSION, osa
from osa_runtime.ops.coefficients import CHEBYSHEV_EVEN, CHEBYSHEV_ODD, CHEBYSHEV_REACH, CHEBYSHEV_STEPS

FARTHEST = CHEBYSHEV_REACH * CHEBYSHEV_STEPS


@script(osa, default_opset=op)
def SteppedSolution(m, m2, norm, w, t, c):
    """J·φ₁(M)·W with the balance undone: what Q and what K is multiplied by. NaN where the norm is out of range.

    With k steps, A = M/k and Y = φ₁(A)·W: Y ← Y + φ₁(A)·(W + AY), k − 1 times, is k·φ₁(M)·W. All entries of a batch
    take as many steps as the largest norm needs.
    """
    in_range = norm <= FARTHEST
    largest = op.ReduceMax(op.Where(in_range, norm, op.Constant(value_float=0.0)), keepdims=0)
    steps = op.Max(op.Ceil(largest / CHEBYSHEV_REACH), op.Constant(value_float=1.0))
    step = op.Where(in_range, op.Reciprocal(steps), op.Constant(value_float=float("nan")))
    factor = step / CHEBYSHEV_REACH
    size = op.Shape(m, start=-1)
    identity = op.EyeLike(op.ConstantOfShape(op.Concat(size, size, axis=0)), dtype=1)
    u = m2 * (factor * factor * 2.0) + identity
    y = osa.ChebyshevPhi1(m, u, w, factor)
    for _ in range(op.Cast(steps, to=onnx.TensorProto.INT64) - 1):
        y = y + osa.ChebyshevPhi1(m, u, w + op.MatMul(m, y) * step, factor)
    upper, lower = op.Split(y, axis=-2, num_outputs=2)
    return (c * t * step) * lower, (op.Neg(c) * step / t) * upper


def chebyshev_functions() -> list[onnx.FunctionProto]:
    return [_phi1(), SteppedSolution.to_function_proto()]


def _phi1() -> onnx.FunctionProto:
    """Horner's scheme in u, written out: y ← u·y + eⱼW + oⱼXW."""
    nodes = [
        helper.make_node("MatMul", ["m", "w"], ["mw"]),
        helper.make_node("Mul", ["mw", "factor"], ["xw"]),
    ]
    y = ""
    for j, pair in reversed(list(enumerate(zip(CHEBYSHEV_EVEN, CHEBYSHEV_ODD, strict=True)))):
        for name, coefficient, operand in (("even", pair[0], "w"), ("odd", pair[1], "xw")):
            nodes.append(helper.make_node("Constant", [], [f"{name}_{j}"], value_float=coefficient))
            nodes.append(helper.make_node("Mul", [operand, f"{name}_{j}"], [f"{name}_part_{j}"]))
        last = "term" if y else "y"
        nodes.append(helper.make_node("Add", [f"even_part_{j}", f"odd_part_{j}"], [f"{last}_{j}"]))
        if y:
            nodes.append(helper.make_node("MatMul", ["u", y], [f"raised_{j}"]))
            nodes.append(helper.make_node("Add", [f"raised_{j}", f"term_{j}"], [f"y_{j}"]))
        y = f"y_{j}"
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, VERSION)]
    return helper.make_function(
        DOMAIN,
        "ChebyshevPhi1",
        ["m", "u", "w", "factor"],
        [y],
        nodes,
        opsets,
        doc_string="φ₁(A)·W for A = R·X, X = factor·M and u = 2X² + I: Σⱼ uʲ(eⱼ + oⱼX)·W by Horner's scheme.",
    )
