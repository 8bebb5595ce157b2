"""Horner's scheme for polynomials of a matrix applied to W.

yⱼ = (eⱼ₊₁/eⱼ)·u·yⱼ₊₁ + W + (oⱼ/eⱼ)·XW,      y₀ = Σⱼ uʲ(eⱼ + oⱼX)·W/e₀
"""

from __future__ import annotations

import torch
from torch import Tensor


def horner(u: Tensor, w: Tensor, xw: Tensor, even: list[float], odd: list[float]) -> Tensor:
    """y₀ for matrices with one batch axis: u (b, m, m), W and XW (b, m, e).

    Divided by eⱼ, so that the factor of the product goes into the product.
    """
    top = len(even) - 1
    y = torch.add(w, xw, alpha=odd[top] / even[top])
    for k in range(top):
        j = top - 1 - k
        y = torch.baddbmm(torch.add(w, xw, alpha=odd[j] / even[j]), u, y, alpha=even[j + 1] / even[j])
    return y
