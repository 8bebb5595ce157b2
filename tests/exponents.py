"""Inputs with a chosen ‖S‖₂, for the tests of the operators."""

from __future__ import annotations

import torch
from torch import Tensor


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64).to(dtype)


def scale_for(q: Tensor, k: Tensor, norm: float) -> Tensor:
    """One scale per entry of the batch that makes ‖S‖₂ = norm (1 where S is zero), in float64."""
    q, k = q.double(), k.double()
    products = q @ k.transpose(-1, -2)
    current = torch.linalg.matrix_norm(products - products.transpose(-1, -2), 2)
    return torch.where(current > 0, norm / current, torch.ones_like(current))


def relative_error(actual: Tensor, expected: Tensor) -> Tensor:
    """‖actual − expected‖_F / ‖expected‖_F for each entry of the batch."""
    difference = torch.linalg.matrix_norm(actual.double() - expected.double())
    return difference / torch.linalg.matrix_norm(expected.double())
