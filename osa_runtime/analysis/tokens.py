"""How far the tokens of a sequence are apart: what rank collapse takes away. Each measure is of x (..., N, D)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from osa_runtime.models.stack import Stack


def residual_from_rank_one(x: Tensor) -> Tensor:
    """‖X − 1·x̄ᵀ‖/‖X‖: 0 if all tokens are equal, about 1 if they have nothing in common (Dong et al., 2021)."""
    x = x.double()
    return torch.linalg.matrix_norm(x - x.mean(-2, keepdim=True)) / torch.linalg.matrix_norm(x)


def mean_cosine(x: Tensor) -> Tensor:
    """The mean cosine between two different tokens; 1 if all have one direction. NaN for a single token."""
    unit = nn.functional.normalize(x.double(), dim=-1)
    tokens = x.size(-2)
    total = unit.sum(-2).square().sum(-1)  # of all pairs, a token with itself included
    if tokens == 1:
        return torch.full_like(total, float("nan"))
    return (total - tokens) / (tokens * (tokens - 1))


def effective_rank(x: Tensor) -> Tensor:
    """exp of the entropy of the singular values' distribution (Roy & Vetterli, 2007)."""
    values = torch.linalg.svdvals(x.double())
    shares = values / values.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp()


def through_depth(stack: Stack, x: Tensor, mask: Tensor | None = None) -> list[Tensor]:
    """The tokens before the first block, and after each."""
    found = [x]
    for block in stack.blocks:
        found.append(block(found[-1], mask))
    return found
