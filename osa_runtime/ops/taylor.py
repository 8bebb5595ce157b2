"""Polynomials of degree 8 in three matrix products, with Taylor or Chebyshev coefficients.

Evaluation scheme of Sastre (2018) and of Bader, Blanes & Casas (2019); ``coefficients.py`` has the numbers.
They arrive as default arguments because TorchScript cannot see module globals.
"""

from __future__ import annotations

import torch
from torch import Tensor

from osa_runtime.ops.coefficients import CHEBYSHEV_EXP, TAYLOR_EXP, TAYLOR_PHI1


def taylor_expm1(
    a: Tensor, a2: Tensor, c: tuple[float, float, float, float, float, float, float, float] = TAYLOR_EXP
) -> Tensor:
    """e^A − I to degree 8, given A and A². No identity is added and subtracted, so a small A keeps all its digits."""
    return _without_constant(a, a2, c)


def chebyshev_expm1(
    a: Tensor, a2: Tensor, c: tuple[float, float, float, float, float, float, float, float] = CHEBYSHEV_EXP
) -> Tensor:
    """The same with Chebyshev coefficients on [−i, i], for skew A and results in float32: it reaches further."""
    return _without_constant(a, a2, c)


def taylor_phi1(
    a: Tensor, a2: Tensor, c: tuple[float, float, float, float, float, float, float, float] = TAYLOR_PHI1
) -> Tensor:
    """φ₁(A) = (e^A − I)/A to degree 8, given A and A²."""
    return plus_identity(_without_constant(a, a2, c), 1.0)


def _without_constant(
    a: Tensor, a2: Tensor, c: tuple[float, float, float, float, float, float, float, float]
) -> Tensor:
    x1, x3, x4, x5, x6, x7, y1, y2 = c
    a4 = a2 @ (x1 * a + a2)
    left = x3 * a2 + a4
    return y1 * a + y2 * a2 + x4 * left + left @ (x5 * a + x6 * a2 + x7 * a4)


def plus_identity(a: Tensor, factor: float) -> Tensor:
    return a + factor * torch.eye(a.size(-1), dtype=a.dtype, device=a.device)
