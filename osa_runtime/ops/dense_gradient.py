"""The dense form in eager mode: decided by numbers in place of tensors, with the gradient written out.

The formulas are those of ``dense.py``, ``approximants.py`` and ``scaling.py``, which graphs capture. For a few tokens
their cost is the number of calls, of which there are half as many here. The gradient goes backwards through the same
steps; S is skew and S² symmetric, and of the gradient of S only its skew part H matters:

    dV = (e^S − I)ᵀ·dY      dQ = c·H·K      dK = −c·H·Q      dc = ⟨H, QKᵀ⟩ = ⟨H, S⟩/2c

Whatever is unusual is left to the plain path: values that are not finite or out of range, ``torch.func``, graphs.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from osa_runtime.ops.approximants import CHEBYSHEV_EXP_PASSES, TAYLOR_EXP_PASSES
from osa_runtime.ops.coefficients import LARGEST_TERMS
from osa_runtime.ops.scaling import largest_norm, reach
from osa_runtime.ops.values import by_autograd, is_plain_eager

SMALLEST_SCALE = 1e-25  # below, S may lose digits to the range of float32


def usual_exponent(q: Tensor, k: Tensor, v: Tensor, c: Tensor, double: bool) -> tuple[Tensor, Tensor, int] | None:
    """S and S², with one batch axis, and the number of squarings; None where the plain path has to look closer."""
    if not is_plain_eager(q, k, v, c):
        return None
    with torch.no_grad():
        q64, k64 = (x.to(torch.float64, memory_format=torch.contiguous_format) for x in (q, k))
        half = q64 @ (k64 * c.to(torch.float64)).mT
        s = (half - half.mT).to(q.dtype).reshape(-1, q.size(-2), q.size(-2))
        s2 = torch.bmm(s, s)
        norm = (float(torch.linalg.vector_norm(s2, dim=(-2, -1)).amax()) ** 2 / 2) ** 0.25
        terms = float(c.abs().amax()) * float(torch.linalg.vector_norm(q64)) * float(torch.linalg.vector_norm(k64))
    theta = reach("taylor", "dense", double)
    # Of the whole batch, so at least those of each entry. NaN fails each of the comparisons.
    if not (norm <= largest_norm(theta, -1, double) and terms <= (2.0**20 if double else LARGEST_TERMS)):
        return None
    return s, s2, max(0, math.ceil(math.log2(norm / theta) + 1e-5)) if norm > 0 else 0


class DenseChange(torch.autograd.Function):
    """(e^S − I)·V from Q, K, V, c, with S, S² and the number of squarings at hand."""

    @staticmethod
    def forward(
        q: Tensor,  # noqa: ARG004  # S is made of these; they are here for their gradients
        k: Tensor,  # noqa: ARG004
        v: Tensor,
        c: Tensor,  # noqa: ARG004
        s: Tensor,
        s2: Tensor,
        count: int,
        double: bool,
    ) -> tuple[Tensor, ...]:
        t, left, right, expm1 = _scaled(s, s2, 2.0**-count, double)
        powers = [expm1]
        for _ in range(count):
            powers.append(torch.baddbmm(powers[-1], powers[-1], powers[-1], beta=2))
        return _as_batch(powers[-1], v) @ v, t, left, right, *powers

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.count, ctx.double = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *output[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grad = grads[0]
        if grad is None:
            return (None,) * 8
        q, k, v, c, s, s2, t, left, right, *powers = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *by_autograd(partial(_plain, double=ctx.double), (q, k, v, c), grad), None, None, None, None
        needs_q, needs_k, needs_v, needs_c = ctx.needs_input_grad[:4]
        for_v = _as_batch(powers[-1], v).mT @ grad if needs_v else None
        if not (needs_q or needs_k or needs_c):
            return None, None, for_v, None, None, None, None, None
        g = (grad @ v.mT).reshape(s.shape)
        for power in reversed(powers[:-1]):
            g = torch.baddbmm(torch.baddbmm(g, g, power.mT, beta=2), power.mT, g)
        h = _as_batch(_skew_gradient(g, s, s2, t, left, right, 2.0**-ctx.count, ctx.double), v)
        return (
            h @ (k * c) if needs_q else None,
            (h @ q) * -c if needs_k else None,
            for_v,
            _gradient_of_scale(h, _as_batch(s, v), q, k, c) if needs_c else None,
            *(None,) * 4,
        )


def eager_change(q: Tensor, k: Tensor, v: Tensor, c: Tensor, double: bool) -> Tensor | None:
    """(e^S − I)·V with S = c(QKᵀ − KQᵀ); None where the plain path has to look closer."""
    found = usual_exponent(q, k, v, c, double)
    if found is None:
        return None
    change: Tensor = DenseChange.apply(q, k, v, c, *found, double)[0]
    return change


def _as_batch(x: Tensor, like: Tensor) -> Tensor:
    return x.view(*like.shape[:-2], x.size(-2), x.size(-1))


def _scaled(s: Tensor, s2: Tensor, factor: float, double: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """t, left and right of ``approximants.polynomial``, and e^A − I for A = factor·S: the same to the last bit."""
    g1, g2, right_left, right_t, right_a, low_left, low_t, low_a = TAYLOR_EXP_PASSES if double else CHEBYSHEV_EXP_PASSES
    first, second = factor * g1, factor * factor * g2
    a, a2 = s * first, s2 * second
    t = a + a2
    left = torch.baddbmm(a2, a2, t)
    right = (right_left * left).add_(t, alpha=right_t).add_(a, alpha=right_a)
    low = (low_left * left).add_(t, alpha=low_t).add_(a, alpha=low_a)
    return t, left, right, low.baddbmm_(left, right)


def _skew_gradient(
    g: Tensor, s: Tensor, s2: Tensor, t: Tensor, left: Tensor, right: Tensor, factor: float, double: bool
) -> Tensor:
    """X − Xᵀ for the gradient X of S, from that of e^A − I: the steps of ``_scaled`` backwards."""
    g1, g2, right_left, right_t, right_a, low_left, low_t, low_a = TAYLOR_EXP_PASSES if double else CHEBYSHEV_EXP_PASSES
    first, second = factor * g1, factor * factor * g2
    for_right = torch.bmm(left.mT, g)
    for_left = torch.baddbmm(g, g, right.mT, beta=low_left).add_(for_right, alpha=right_left)
    for_t = torch.add(g * low_t, for_right, alpha=right_t).baddbmm_(s2, for_left, alpha=second)
    for_a2 = torch.add(for_left, for_t).baddbmm_(for_left, t.mT)
    for_a = torch.add(for_t, g, alpha=low_a).add_(for_right, alpha=right_a)
    x = torch.baddbmm(for_a, for_a2, s, beta=first, alpha=-second).baddbmm_(s, for_a2, alpha=-second)
    return x - x.mT


def _plain(q: Tensor, k: Tensor, v: Tensor, c: Tensor, *, double: bool) -> Tensor:
    from osa_runtime.ops.dense import plain_change  # which imports this module

    return plain_change(q, k, v, c, "taylor", -1, double)


def _gradient_of_scale(h: Tensor, s: Tensor, q: Tensor, k: Tensor, c: Tensor) -> Tensor:
    """⟨H, S⟩/2c, because S has the digits that QKᵀ and KQᵀ lose where they cancel; ⟨H, QKᵀ⟩ where c is next to 0."""
    from_s = (h * s).sum((-2, -1), keepdim=True) / 2
    small = c.abs() < SMALLEST_SCALE
    if bool(small.any()):
        products = -((h @ q) * k).sum((-2, -1), keepdim=True)
        return torch.where(small, products, from_s / c.masked_fill(small, 1.0)).sum_to_size(c.shape)
    return (from_s / c).sum_to_size(c.shape)
