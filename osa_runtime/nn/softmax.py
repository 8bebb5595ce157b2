"""Softmax attention, the baseline."""

from __future__ import annotations

from typing import Optional  # TorchScript reads these annotations and does not know X | Y

import torch
from torch import Tensor, nn

from osa_runtime.nn.checks import check_sequence
from osa_runtime.nn.initialisation import semi_orthogonal
from osa_runtime.nn.projection import PackedProjection, merge_heads


class SoftmaxSelfAttention(nn.Module):
    """x ← W_O · softmax(QKᵀ/√d) · V, with the projections and the initialisation of the orthogonal layer."""

    def __init__(self, dim: int, heads: int, *, conditioning: str = "none", spectral_lambda: float = 1.0) -> None:
        super().__init__()
        self.project = PackedProjection(dim, heads, conditioning=conditioning, spectral_lambda=spectral_lambda)
        self.out = nn.Linear(dim, dim, bias=False)
        with torch.no_grad():
            self.out.weight.copy_(semi_orthogonal(dim, dim))

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        if not torch.jit.is_scripting():
            check_sequence(x, mask, self.project.dim)
        q, k, v = self.project(x)
        if mask is None:
            return self.out(merge_heads(nn.functional.scaled_dot_product_attention(q, k, v)))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, mask[:, None, None, :])
        # A softmax over no token at all is whatever a runtime makes of it; here it is zero.
        empty = ~mask.any(-1)[:, None, None, None]
        return self.out(merge_heads(mixed.masked_fill(empty, 0.0)))
