"""The ``ai.osa`` functions, version 1: orthogonal attention in standard ONNX operators, for any runtime.

    OrthogonalSelfAttentionLinear(x, weight, out, scale, linear, bias) the layer and a linear one behind it
    OrthogonalSelfAttention(x, weight, out, scale[, mask]) the layer: X·T from XᵀX for N ≫ D, else by
    OrthogonalAttention(q, k, v, scale[, mask])   exp(scale·(QKᵀ − KQᵀ))·V
    ├── DenseChange(q, k, v, c)                   (e^S − I)·V through S itself, for N ≤ 2d
    │   └── SkewExpm1(s)                          e^S − I of skew matrices; SkewExponential(s) is e^S
    └── LowRankChange(q, k, v, c)                 the same through the Gram matrix of F = [Q K], for N > 2d
        ├── GramCore(q, k, v, c)                  M = GJ and W = FᵀV, balanced
        ├── CoreNorm(m2), IsInDoubt(m, w, norm)   a bound of ‖S‖, and whether float32 is enough
        ├── NearSolution(m, m2, w, t, c)          J·φ₁(M)·W in float32 for small norms, by a short polynomial
        ├── SteppedSolution(m, m2, norm, w, t, c) the same for larger norms, by steps of a Chebyshev polynomial
        └── Float64Change(q, k, v, c)             in float64, with K sheared along Q, where float32 would lose digits
            └── GramSolution(m, m2, norm, w, t, c) J·φ₁(M)·W by scaling and squaring
    Scaling(fourths, limits)                      2⁻ˢ and s
    ScaledExpm1, ScaledPhi1Minus1 (a, a2)         the approximant

The mathematics, the files and the names are those of ``osa_runtime/ops``; its README has them side by side.
``build_functions`` writes the definitions for one choice of form, approximant and squarings, so that a model holds no
branch it never takes. Models hold them flat (``flat.py``): with the bodies of those they call in place of the calls.
"""

from osa_runtime.exporters.functions.choice import DOMAIN, VERSION, FunctionChoice
from osa_runtime.exporters.functions.library import build_functions

__all__ = ["DOMAIN", "VERSION", "FunctionChoice", "build_functions"]
