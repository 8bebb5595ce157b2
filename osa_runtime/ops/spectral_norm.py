"""‖S‖₂ of orthogonal attention, in float64 and in time linear in N."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

STEPS = 8


def spectral_norm(q: Tensor, k: Tensor, scale: Tensor) -> Tensor:
    """‖S‖₂ for each entry, by power iteration on the factors.

    The estimate is a lower bound within some ten percent, which is enough to scale a tolerance.
    """
    q, k = q.to(torch.float64), k.to(torch.float64)
    c = scale.to(torch.float64)[..., None, None]
    x = torch.randn(*q.shape[:-1], 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    norm = torch.zeros(q.shape[:-2], dtype=torch.float64)
    for _ in range(STEPS):
        x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-300)
        x = c * (q @ (k.mT @ x) - k @ (q.mT @ x))
        norm = torch.linalg.matrix_norm(x)
    return norm


def masked(x: Tensor, mask: Optional[Tensor]) -> Tensor:
    return x if mask is None else x.masked_fill(~mask[..., None].expand_as(x), 0.0)
