"""e^A − I and φ₁(A) − I for A = factor·M small: polynomials of degree 8, or the [4/4] Padé approximant.

The polynomials take three products: the scheme of Sastre (2018) and of Bader, Blanes & Casas (2019), with Taylor's or
Chebyshev's coefficients. The numbers arrive as default arguments because TorchScript cannot see module globals.

Padé: with p(z) = v + z·u, where v and u are even, q(z) = p(−z), r = p/q and therefore

    r − 1 = 2z·u / q        φ₁ ≈ (r − 1)/z = 2u / q

so neither subtracts nearly equal numbers. For skew A, q(A) = p(A)ᵀ: r(A) is orthogonal, whatever the truncation error.
The inverse of q comes from Newton–Schulz steps that start at p, since q·p = I − A²/28 + … .
"""

from __future__ import annotations

import torch
from torch import Tensor

from osa_runtime.ops.coefficients import (
    CHEBYSHEV_EXP,
    PADE_EXP,
    PADE_INVERSE_STEPS,
    TAYLOR_EXP,
    TAYLOR_PHI1,
    Eight,
    in_few_passes,
)

TAYLOR_EXP_PASSES, CHEBYSHEV_EXP_PASSES = in_few_passes(TAYLOR_EXP), in_few_passes(CHEBYSHEV_EXP)
TAYLOR_PHI1_PASSES = in_few_passes(TAYLOR_PHI1)


def scaled_expm1(
    m: Tensor,
    m2: Tensor,
    factor: Tensor,
    approximant: str,
    double: bool,
    taylor: Eight = TAYLOR_EXP_PASSES,
    chebyshev: Eight = CHEBYSHEV_EXP_PASSES,
) -> Tensor:
    """e^A − I for skew A = factor·M. No identity is added and subtracted, so a small A keeps all its digits.

    For a result in float32 the polynomial is Chebyshev's on [−i, i], which reaches further than Taylor's.
    """
    if approximant == "pade":
        _, odd, inverse = pade_parts(m * factor, m2 * (factor * factor))
        return 2 * (odd @ inverse)
    return polynomial(m, m2, factor, taylor if double else chebyshev)


def scaled_phi1_minus1(
    m: Tensor,
    m2: Tensor,
    factor: Tensor,
    approximant: str,
    taylor: Eight = TAYLOR_PHI1_PASSES,
) -> Tensor:
    """φ₁(A) − I for A = factor·M, φ₁(z) = (e^z − 1)/z."""
    if approximant == "pade":
        even, _, inverse = pade_parts(m * factor, m2 * (factor * factor))
        return plus_identity(2 * (even @ inverse), -1.0)
    return polynomial(m, m2, factor, taylor)


def polynomial(m: Tensor, m2: Tensor, factor: Tensor, table: Eight) -> Tensor:
    """A polynomial of degree 8 in A = factor·M without its constant term, in three products with that of M².

    The matrices have one batch axis.
    """
    g1, g2, right_left, right_t, right_a, low_left, low_t, low_a = table
    a, a2 = m * (factor * g1), m2 * (factor * factor * g2)
    t = a + a2
    left = torch.baddbmm(a2, a2, t)
    right = torch.add(torch.add(left, t, alpha=right_t / right_left), a, alpha=right_a / right_left)
    low = torch.add(torch.add(left, t, alpha=low_t / low_left), a, alpha=low_a / low_left)
    return torch.baddbmm(low, left, right, beta=low_left, alpha=right_left)


def pade_parts(
    a: Tensor, a2: Tensor, c: tuple[float, float, float, float] = PADE_EXP, steps: int = PADE_INVERSE_STEPS
) -> tuple[Tensor, Tensor, Tensor]:
    """u(A²), A·u(A²) and q(A)⁻¹."""
    factor = plus_identity(c[3] * a2, c[2])
    odd = a @ factor
    even = plus_identity(c[0] * a2 + c[1] * (a2 @ a2), 1.0)
    denominator, inverse = even - odd, even + odd
    for _ in range(steps):
        inverse = 2 * inverse - inverse @ (denominator @ inverse)
    return factor, odd, inverse


def plus_identity(a: Tensor, factor: float) -> Tensor:
    return a + factor * torch.eye(a.size(-1), dtype=a.dtype, device=a.device)
