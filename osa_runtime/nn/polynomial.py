"""Polynomial attention (arXiv 2410.18613): scores enter as a power, not through a softmax."""

from __future__ import annotations

from typing import Optional  # TorchScript reads these annotations and does not support X | Y

import torch
from torch import Tensor

from osa_runtime.errors import ConfigError
from osa_runtime.nn.projection import ProjectedAttention, check_sequence, merge_heads

POWERS = (1, 3)


class PolynomialSelfAttention(ProjectedAttention):
    """x ← W_O · φ(QKᵀ/√d) · V with φ(x) = xᵖ/√N, p = 1 or 3, N the number of real tokens.

    It is homogeneous of degree 2p + 1: tokens of norm r come out with a norm of the order r²ᵖ⁺¹. A fixed point of that
    map is unstable whatever factor stands before it, so that a deep model needs normalisation, as in the paper.
    """

    def __init__(
        self, dim: int, heads: int, *, power: int = 3, conditioning: str = "none", spectral_lambda: float = 1.0
    ) -> None:
        super().__init__(dim, heads, conditioning=conditioning, spectral_lambda=spectral_lambda)
        if power not in POWERS:
            raise ConfigError(f"power must be 1 or 3, got {power!r}.")
        self.power = power

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        if not torch.jit.is_scripting():
            check_sequence(x, mask, self.project.dim)
        q, k, v = self.project(x)
        if mask is None:
            return self.out(merge_heads(self._mix(q, k, v) / x.size(1) ** 0.5))
        padded = ~mask[:, None, :, None]
        real = mask.sum(-1).to(x.dtype)[:, None, None, None]
        mixed = self._mix(q, k.masked_fill(padded, 0.0), v.masked_fill(padded, 0.0))
        return self.out(merge_heads(mixed / real.sqrt()))

    def _mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scaled = q / self.project.width**0.5
        if self.power == 1:
            # Without a nonlinearity between them the products regroup: (QKᵀ)V = Q(KᵀV), linear in N.
            return scaled @ (k.transpose(-1, -2) @ v)
        scores = scaled @ k.transpose(-1, -2)
        return (scores * scores * scores) @ v
