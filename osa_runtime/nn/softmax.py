"""Softmax attention, the baseline."""

from __future__ import annotations

from typing import Optional  # TorchScript reads these annotations and does not support X | Y

import torch
from torch import Tensor, nn

from osa_runtime.nn.projection import ProjectedAttention, check_sequence, merge_heads


class SoftmaxSelfAttention(ProjectedAttention):
    """x ← W_O · softmax(QKᵀ/√d) · V, with the projections and the initialisation of the orthogonal layer."""

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        if not torch.jit.is_scripting():
            check_sequence(x, mask, self.project.dim)
        q, k, v = self.project(x)
        if mask is None:
            return self.out(merge_heads(nn.functional.scaled_dot_product_attention(q, k, v)))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, mask[:, None, None, :])
        # A softmax over no token at all depends on the runtime; here it is zero.
        empty = ~mask.any(-1)[:, None, None, None]
        return self.out(merge_heads(mixed.masked_fill(empty, 0.0)))
