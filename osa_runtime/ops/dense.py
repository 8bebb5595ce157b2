"""The dense form, for N ≤ 2d: S is formed as an N×N matrix, which is skew and therefore normal.

Graphs capture the formulas, written with ``approximants.py`` and ``scaling.py``. For a few tokens their cost in eager
mode is the number of calls; there the decisions are taken by numbers in place of tensors, and the gradient is written
out. It goes backwards through the same steps; S is skew and S² symmetric, and of the gradient of S only its skew part H
matters:

    dV = e^Sᵀ·dY      dQ = c·H·K      dK = −c·H·Q      dc = ⟨H, QKᵀ⟩ = ⟨H, S⟩/2c

Whatever is unusual is left to the formulas: values that are not finite or out of range, ``torch.func``, graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Optional  # TorchScript reads these annotations and does not support X | Y

import torch
from torch import Tensor

from osa_runtime.ops.approximants import CHEBYSHEV_EXP_PASSES, TAYLOR_EXP_PASSES, scaled_expm1
from osa_runtime.ops.coefficients import LARGEST_TERMS
from osa_runtime.ops.entries import one_batch_axis, stacked
from osa_runtime.ops.rounding import check_digits, is_lost_in_terms
from osa_runtime.ops.scaling import doubled_expm1, largest_norm, reach, scaling
from osa_runtime.ops.values import by_autograd, is_plain_eager

SMALLEST_SCALE = 1e-25  # below, gradients may lose digits to the range of float32


def skew_matrix(q: Tensor, k: Tensor, c: Tensor) -> Tensor:
    """S = c(QKᵀ − KQᵀ), skew to the last bit: one product and its own transpose.

    In float64: where S is small by cancellation (tokens with a common mean, K almost a multiple of Q), rounding the
    products to float32 first would cost its leading digits. One product of an N×N exponential is cheap.
    """
    half = q.to(torch.float64) @ (k.to(torch.float64) * c.to(torch.float64)).mT
    return (half - half.mT).to(q.dtype)


def skew_norm(s2: Tensor) -> Tensor:
    """(‖S²‖_F²/2)^¼, an upper bound of ‖S‖₂ for each skew matrix, from S².

    The eigenvalues come in pairs ±iσ, so 2σ_max⁴ ≤ Σσ⁴ = ‖S²‖_F². Beyond the range of float32 it is infinite, which is
    out of range; where the squares vanish, so does the exponent.
    """
    return (s2.detach().square().sum((-2, -1)) / 2).sqrt().sqrt()


def skew_expm1(s: Tensor, approximant: str, squarings: int, double: bool) -> Tensor:
    """e^S − I for skew S. ``squarings`` < 0 means as many as the norm needs."""
    one_batch_axis = s.reshape(-1, s.size(-2), s.size(-1))
    s2 = one_batch_axis @ one_batch_axis
    factor, count = scaling(skew_norm(s2), reach(approximant, "dense", double), squarings, double)
    return doubled_expm1(scaled_expm1(one_batch_axis, s2, factor, approximant, double), count, squarings).reshape(
        s.shape
    )


def attention_expm1(q: Tensor, k: Tensor, c: Tensor, approximant: str, squarings: int, double: bool) -> Tensor:
    """e^S − I for S = c(QKᵀ − KQᵀ), NaN for entries whose S has no digits."""
    s = skew_matrix(q, k, c)
    size = torch.linalg.vector_norm(s.detach().to(torch.float64), dim=(-2, -1))
    lost = is_lost_in_terms(q, k, c, size, double)
    if not torch.jit.is_scripting():
        check_digits(lost)
    return skew_expm1(s, approximant, squarings, double).masked_fill(lost[..., None, None], float("nan"))


def dense_change(q: Tensor, k: Tensor, v: Tensor, c: Tensor, approximant: str, squarings: int, double: bool) -> Tensor:
    """(e^S − I)·V with S = c(QKᵀ − KQᵀ)."""
    return attention_expm1(q, k, c, approximant, squarings, double) @ v


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, c: Tensor, approximant: str, squarings: int, double: bool
) -> Tensor:
    """e^S·V, with any batch axes, over which c broadcasts: eager mode has a faster way, with a gradient of its own."""
    if not torch.jit.is_scripting():  # noqa: SIM102  # TorchScript skips the body only when this stands alone
        if approximant == "taylor" and squarings < 0:
            result = eager_dense(q, k, v, c, double)
            if result is not None:
                return result
    return plain_attention(q, k, v, c, approximant, squarings, double)


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, c: Tensor, approximant: str, squarings: int, double: bool
) -> Tensor:
    shape = v.shape
    q, k, v, c = one_batch_axis(q, k, v, c)
    return (v + dense_change(q, k, v, c, approximant, squarings, double)).reshape(shape)


def usual_exponent(q: Tensor, k: Tensor, v: Tensor, c: Tensor, double: bool) -> tuple[Tensor, Tensor, int] | None:
    """S and S² with one batch axis, and the number of squarings; None where the formulas have to look closer."""
    if not is_plain_eager(q, k, v, c):
        return None
    with torch.no_grad():
        q64, k64 = q.to(torch.float64), k * c.to(torch.float64)[..., None, None]
        half = torch.bmm(stacked(q64), stacked(k64).mT)
        s = (half - half.mT).to(q.dtype)
        s2 = torch.bmm(s, s)
        norm = (float(torch.linalg.vector_norm(s2, dim=(-2, -1)).amax()) ** 2 / 2) ** 0.25
        terms = float(torch.linalg.vector_norm(q64)) * float(torch.linalg.vector_norm(k64))
        smallest = float(c.abs().amin())
    theta = reach("taylor", "dense", double)
    # Bounds of the whole batch, so of each entry. NaN and Inf fail the comparisons.
    in_range = norm <= largest_norm(theta, -1, double) and terms <= (2.0**20 if double else LARGEST_TERMS)
    if not (in_range and smallest >= SMALLEST_SCALE):
        return None
    return s, s2, max(0, math.ceil(math.log2(norm / theta) + 1e-5)) if norm > 0 else 0


class DenseProduct(torch.autograd.Function):
    """e^S·V from Q, K, V, c, with S, S² and the number of squarings at hand.

    The inputs have any batch axes, and one inside: autograd would pay for each view.
    """

    # One method in place of forward and setup_context, which would cost an inspection of its signature at each call.
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        c: Tensor,
        s: Tensor,
        s2: Tensor,
        count: int,
        double: bool,
    ) -> Tensor:
        t, left, right, expm1 = _scaled(s, s2, 2.0**-count, double)
        powers = [expm1]
        for _ in range(count):
            powers.append(torch.baddbmm(powers[-1], powers[-1], powers[-1], beta=2))
        ctx.count, ctx.double = count, double
        ctx.save_for_backward(q, k, v, c, s, s2, t, left, right, *powers)
        # Not one baddbmm: adding up from V on would round a small change to the digits of V at each term.
        return torch.bmm(powers[-1], stacked(v)).view(v.shape).add_(v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, c, s, s2, t, left, right, *powers = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *by_autograd(_plainly(ctx.double), (q, k, v, c), grad), *(None,) * 4
        needs_q, needs_k, needs_v, needs_c = ctx.needs_input_grad[:4]
        g = stacked(grad)
        for_v = torch.bmm(powers[-1].mT, g).add_(g).view(v.shape) if needs_v else None
        if not (needs_q or needs_k or needs_c):
            return None, None, for_v, *(None,) * 5
        g = torch.bmm(g, stacked(v).mT)
        for power in reversed(powers[:-1]):
            g = torch.baddbmm(g, g, power.mT, beta=2).baddbmm_(power.mT, g)
        h = _skew_gradient(g, s, s2, t, left, right, 2.0**-ctx.count, ctx.double)
        for_c = _gradient_of_scale((h * s).view(*q.shape[:-1], -1), c) if needs_c else None
        h.view(*q.shape[:-1], -1).mul_(c[..., None, None])
        for_q = torch.bmm(h, stacked(k)).view(q.shape) if needs_q else None
        for_k = torch.bmm(h.mT, stacked(q)).view(k.shape) if needs_k else None
        return for_q, for_k, for_v, for_c, *(None,) * 4


def eager_dense(q: Tensor, k: Tensor, v: Tensor, c: Tensor, double: bool) -> Optional[Tensor]:
    """e^S·V with S = c(QKᵀ − KQᵀ); None where the formulas have to look closer."""
    found = usual_exponent(q, k, v, c, double)
    if found is None:
        return None
    result: Tensor = DenseProduct.apply(q, k, v, c, *found, double)
    return result


def _plainly(double: bool) -> Callable[..., Tensor]:
    return lambda q, k, v, c: plain_attention(q, k, v, c, "taylor", -1, double)


def _scaled(s: Tensor, s2: Tensor, factor: float, double: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """t, left and right of ``approximants.polynomial``, and e^A − I for A = factor·S: the same to the last bit."""
    g1, g2, right_left, right_t, right_a, low_left, low_t, low_a = TAYLOR_EXP_PASSES if double else CHEBYSHEV_EXP_PASSES
    first, second = factor * g1, factor * factor * g2
    a, a2 = s * first, s2 * second
    t = a + a2
    left = torch.baddbmm(a2, a2, t)
    right = torch.add(left, t, alpha=right_t / right_left).add_(a, alpha=right_a / right_left)
    low = torch.add(left, t, alpha=low_t / low_left).add_(a, alpha=low_a / low_left)
    return t, left, right, low.baddbmm_(left, right, beta=low_left, alpha=right_left)


def _skew_gradient(
    g: Tensor, s: Tensor, s2: Tensor, t: Tensor, left: Tensor, right: Tensor, factor: float, double: bool
) -> Tensor:
    """X − Xᵀ for the gradient X of S, from that of e^A − I: the steps of ``_scaled`` backwards."""
    g1, g2, right_left, right_t, right_a, low_left, low_t, low_a = TAYLOR_EXP_PASSES if double else CHEBYSHEV_EXP_PASSES
    first, second = factor * g1, factor * factor * g2
    for_right = torch.bmm(left.mT, g)
    for_left = torch.baddbmm(g, g, right.mT, beta=low_left, alpha=right_left).add_(for_right, alpha=right_left)
    for_t = torch.add(g * low_t, for_right, alpha=right_t).baddbmm_(s2, for_left, alpha=second)
    for_a2 = torch.add(for_left, for_t).baddbmm_(for_left, t.mT)
    for_a = torch.add(for_t, g, alpha=low_a).add_(for_right, alpha=right_a)
    x = torch.baddbmm(for_a, for_a2, s, beta=first, alpha=-second).baddbmm_(s, for_a2, alpha=-second)
    return x - x.mT


def _gradient_of_scale(products: Tensor, c: Tensor) -> Tensor:
    """⟨H, S⟩/2c from H∘S, because S has the digits that QKᵀ and KQᵀ lose where they cancel."""
    return products.sum_to_size(*c.shape, 1, 1).view(c.shape) / (2 * c)
