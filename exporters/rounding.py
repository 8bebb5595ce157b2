"""Weights changed at random by as much as rounding changes them: how much a model makes of it is its conditioning."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def moved_state(module: nn.Module, amount: float, seed: int, coarse: bool) -> dict[str, Tensor]:
    """All floating-point parameters and buffers, each value moved by up to ``amount`` of itself.

    ``coarse``: by up to ``amount`` of the largest value of its channel instead, as quantisation does to matrices.
    """
    generator = torch.Generator().manual_seed(seed)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: _moved(x.detach(), amount, generator, coarse) for name, x in state.items() if x.is_floating_point()}


def _moved(x: Tensor, amount: float, generator: torch.Generator, coarse: bool) -> Tensor:
    size = x.abs().amax(tuple(range(1, x.dim())), keepdim=True) if coarse and x.dim() > 1 else x
    return x + amount * size * (2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1)
