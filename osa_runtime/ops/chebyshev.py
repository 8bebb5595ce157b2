"""The core of the low-rank form in float32: φ₁ by Chebyshev polynomials, in steps instead of squarings.

The polynomial is applied to W, half as wide as M, and no power of M but the square is formed. A norm that is near takes
one step of a short polynomial. A step of the longer one reaches as far as two to three squarings; beyond a few steps
the core is computed in float64, where squaring takes over.

Everything here has one batch axis: M (b, 2d, 2d), W (b, 2d, e), the norm (b), t and c (b, 1, 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from osa_runtime.ops.approximants import plus_identity
from osa_runtime.ops.coefficients import (
    CHEBYSHEV_EVEN,
    CHEBYSHEV_ODD,
    CHEBYSHEV_REACH,
    FARTHEST,
    NEAR_EVEN,
    NEAR_ODD,
    Seven,
    Six,
)
from osa_runtime.ops.graph_control import loop
from osa_runtime.ops.values import trip_count, whole


def near_solution(
    m: Tensor, m2: Tensor, w: Tensor, t: Tensor, c: Tensor, even: Six = NEAR_EVEN
) -> tuple[Tensor, Tensor]:
    """J·φ₁(M)·W with the balance undone, for norms up to NEAR_REACH: the factors of Q and of K."""
    upper, lower = near_phi1(m2, w, m @ w).chunk(2, -2)
    first = c * even[0]
    return (first * t) * lower, (-first / t) * upper


def stepped_solution(
    m: Tensor,
    m2: Tensor,
    norm: Tensor,
    w: Tensor,
    t: Tensor,
    c: Tensor,
    even: Seven = CHEBYSHEV_EVEN,
    reach: float = CHEBYSHEV_REACH,
    farthest: float = FARTHEST,
) -> tuple[Tensor, Tensor]:
    """J·φ₁(M)·W with the balance undone: the factors of Q and of K. NaN where the norm is out of range.

    With k steps, A = M/k and Y = φ₁(A)·W: Y ← Y + φ₁(A)·(W + AY), k − 1 times, is k·φ₁(M)·W. All entries of a batch
    take as many steps as the largest norm needs. y is Y/e₀.
    """
    steps = steps_needed(norm)
    in_range = norm[..., None, None] <= farthest
    step = torch.where(in_range, 1.0 / steps.to(m.dtype), torch.full_like(w[..., :1, :1], float("nan")))
    factor, first = step / reach, step * even[0]
    u = plus_identity(m2 * (factor * factor * 2.0), 1.0)
    y = chebyshev_phi1(u, w, m @ w * factor)
    y = _further_steps(y, m, u, w, factor, first, steps - 1)
    upper, lower = y.chunk(2, -2)
    return (c * t * first) * lower, (-c * first / t) * upper


def steps_needed(norm: Tensor, reach: float = CHEBYSHEV_REACH, farthest: float = FARTHEST) -> Tensor:
    """⌈norm/R⌉ for the largest norm in range, as an integer scalar of at least 1."""
    every = norm
    if not torch.jit.is_scripting():
        every = whole(norm)
    usable = torch.where(every <= farthest, every, torch.zeros_like(every))
    return torch.ceil(usable.amax() / reach).clamp(min=1.0).to(torch.int64)


def chebyshev_phi1(
    u: Tensor, w: Tensor, xw: Tensor, even: Seven = CHEBYSHEV_EVEN, odd: Seven = CHEBYSHEV_ODD
) -> Tensor:
    """φ₁(A)·W/e₀ for A = R·X from u = 2X² + I, W and XW: Σⱼ uʲ(eⱼ + oⱼX)·W/e₀ by Horner's scheme."""
    return horner(u, w, xw, list(even), list(odd))


def near_phi1(u: Tensor, w: Tensor, xw: Tensor, even: Six = NEAR_EVEN, odd: Six = NEAR_ODD) -> Tensor:
    """φ₁(M)·W/e₀ from u = M², W and XW = MW: Σⱼ uʲ(eⱼ + oⱼM)·W/e₀ by Horner's scheme."""
    return horner(u, w, xw, list(even), list(odd))


def _step(y: Tensor, m: Tensor, u: Tensor, w: Tensor, factor: Tensor, first: Tensor) -> Tensor:
    further = w + m @ y * first
    return y + chebyshev_phi1(u, further, m @ further * factor)


def _further_steps(y: Tensor, m: Tensor, u: Tensor, w: Tensor, factor: Tensor, first: Tensor, count: Tensor) -> Tensor:
    if not torch.jit.is_scripting():  # noqa: SIM102  # TorchScript skips the body only when this stands alone
        if torch.compiler.is_exporting():
            return _further_steps_in_graph(y, m, u, w, factor, first, count)
    for _ in range(trip_count(count)):
        y = _step(y, m, u, w, factor, first)
    return y


@torch.jit.unused
def _further_steps_in_graph(
    y: Tensor, m: Tensor, u: Tensor, w: Tensor, factor: Tensor, first: Tensor, count: Tensor
) -> Tensor:
    def unfinished(left: Tensor, y: Tensor, *fixed: Tensor) -> Tensor:  # noqa: ARG001  # it takes the whole state
        return left > 0

    def step(
        left: Tensor, y: Tensor, m: Tensor, u: Tensor, w: Tensor, factor: Tensor, first: Tensor
    ) -> tuple[Tensor, ...]:
        return left - 1, _step(y, m, u, w, factor, first)

    return loop(unfinished, step, (count, y), (m, u, w, factor, first))[1]


def horner(u: Tensor, w: Tensor, xw: Tensor, even: list[float], odd: list[float]) -> Tensor:
    """Horner's scheme for a polynomial of a matrix applied to W: y₀ = Σⱼ uʲ(eⱼ + oⱼX)·W/e₀.

    yⱼ = (eⱼ₊₁/eⱼ)·u·yⱼ₊₁ + W + (oⱼ/eⱼ)·XW is divided by eⱼ, so that the factor of the product goes into the product.
    u (b, m, m), W and XW (b, m, e).
    """
    top = len(even) - 1
    y = torch.add(w, xw, alpha=odd[top] / even[top])
    for k in range(top):
        j = top - 1 - k
        y = torch.baddbmm(torch.add(w, xw, alpha=odd[j] / even[j]), u, y, alpha=even[j + 1] / even[j])
    return y
