"""The diagonal [4/4] Padé approximant r = p/q of e^z, in matrix products only.

With p(z) = v + z·u, where v and u are even, q(z) = p(−z) and therefore

    r − 1 = 2z·u / q        φ₁ ≈ (r − 1)/z = 2u / q

so neither form subtracts nearly equal numbers. For skew A, q(A) = p(A)ᵀ: r(A) is orthogonal, whatever the
truncation error. The inverse of q comes from Newton–Schulz steps that start at p, since q·p = I − A²/28 + … .
"""

from __future__ import annotations

from torch import Tensor

from osa_runtime.ops.coefficients import PADE_EXP, PADE_INVERSE_STEPS
from osa_runtime.ops.taylor import plus_identity


def pade_expm1(a: Tensor, a2: Tensor) -> Tensor:
    """e^A − I, given A and A²."""
    odd, inverse = _odd_part_and_inverse(a, a2)
    return 2 * (odd @ inverse)


def pade_phi1(a: Tensor, a2: Tensor) -> Tensor:
    """φ₁(A) = (e^A − I)/A, given A and A²."""
    _, inverse = _odd_part_and_inverse(a, a2)
    return 2 * (_even_factor(a2) @ inverse)


def _even_factor(a2: Tensor, c: tuple[float, float, float, float] = PADE_EXP) -> Tensor:
    """u(A²)."""
    return plus_identity(c[3] * a2, c[2])


def _odd_part_and_inverse(
    a: Tensor, a2: Tensor, c: tuple[float, float, float, float] = PADE_EXP, steps: int = PADE_INVERSE_STEPS
) -> tuple[Tensor, Tensor]:
    """A·u(A²), and q(A)⁻¹."""
    odd = a @ _even_factor(a2)
    even = plus_identity(c[0] * a2 + c[1] * (a2 @ a2), 1.0)
    denominator, inverse = even - odd, even + odd
    for _ in range(steps):
        inverse = inverse @ plus_identity(-(denominator @ inverse), 2.0)
    return odd, inverse
