"""Horner's scheme for polynomials of a matrix applied to W, with a gradient that keeps no intermediate.

    yⱼ = (eⱼ₊₁/eⱼ)·u·yⱼ₊₁ + W + (oⱼ/eⱼ)·XW,      y₀ = Σⱼ uʲ(eⱼ + oⱼX)·W/e₀

Autograd would keep every yⱼ until the backward pass. Here they are computed again, and the gradient of u, a sum of
products of gⱼ and yⱼ₊₁, is one product of both next to each other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from osa_runtime.ops.values import by_autograd, is_differentiated


def horner(u: Tensor, w: Tensor, xw: Tensor, even: list[float], odd: list[float]) -> Tensor:
    """y₀ for matrices with one batch axis: u (b, m, m), W and XW (b, m, e)."""
    if not torch.jit.is_scripting():  # noqa: SIM102  # TorchScript skips the body only when this stands alone
        if is_differentiated(u, w, xw):
            return _HornerGradient.apply(u, w, xw, even, odd)
    return plain_horner(u, w, xw, even, odd)


def plain_horner(u: Tensor, w: Tensor, xw: Tensor, even: list[float], odd: list[float]) -> Tensor:
    """Divided by eⱼ, so that the factor of the product goes into the product."""
    top = len(even) - 1
    y = torch.add(w, xw, alpha=odd[top] / even[top])
    for k in range(top):
        j = top - 1 - k
        y = torch.baddbmm(torch.add(w, xw, alpha=odd[j] / even[j]), u, y, alpha=even[j + 1] / even[j])
    return y


class _HornerGradient(torch.autograd.Function):
    @staticmethod
    def forward(u: Tensor, w: Tensor, xw: Tensor, even: list[float], odd: list[float]) -> Tensor:
        return plain_horner(u, w, xw, even, odd)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        *tensors, ctx.even, ctx.odd = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        even, odd, (u, w, xw) = ctx.even, ctx.odd, ctx.saved_tensors
        if torch.is_grad_enabled():
            return *by_autograd(lambda u, w, xw: plain_horner(u, w, xw, even, odd), (u, w, xw), grad), None, None
        for_u, for_w, for_xw = _gradients(u, w, xw, grad, even, odd)
        return for_u, for_w, for_xw, None, None


def _gradients(
    u: Tensor, w: Tensor, xw: Tensor, grad: Tensor, even: list[float], odd: list[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """gⱼ₊₁ = (eⱼ₊₁/eⱼ)·uᵀgⱼ; then W has Σgⱼ, XW has Σ(oⱼ/eⱼ)gⱼ, and u has Σ(eⱼ₊₁/eⱼ)·gⱼ·yⱼ₊₁ᵀ."""
    top = len(even) - 1
    ys = [torch.add(w, xw, alpha=odd[top] / even[top])]
    for j in range(top - 1, 0, -1):
        ys.append(torch.baddbmm(torch.add(w, xw, alpha=odd[j] / even[j]), u, ys[-1], alpha=even[j + 1] / even[j]))
    scaled, for_w, for_xw = [], grad.clone(), grad * (odd[0] / even[0])
    for j in range(top):
        scaled.append(grad * (even[j + 1] / even[j]))
        grad = u.mT @ scaled[-1]
        for_w.add_(grad)
        for_xw.add_(grad, alpha=odd[j + 1] / even[j + 1])
    return torch.cat(scaled, -1) @ torch.cat(ys[::-1], -1).mT, for_w, for_xw
