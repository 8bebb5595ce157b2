"""Checks of the inputs of layers."""

from __future__ import annotations

import torch
from torch import Tensor

from osa_runtime.errors import InputError


def check_sequence(x: Tensor, mask: Tensor | None, dim: int) -> None:
    """Check for floats x (batch, N, dim) and a boolean mask (batch, N)."""
    if not isinstance(x, Tensor) or x.dim() != 3 or x.size(-1) != dim or not x.is_floating_point():
        raise InputError(f"Expected a floating-point tensor (batch, tokens, {dim}), got {describe(x)}.")
    if mask is not None:
        check_mask(mask, x.shape[:2])


def check_mask(mask: Tensor, shape: torch.Size) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise InputError(f"mask must be a boolean tensor, True for real tokens, got {describe(mask)}; use mask.bool().")
    if mask.shape != shape:
        raise InputError(f"mask must be (batch, tokens) = {tuple(shape)}, got {tuple(mask.shape)}.")


def describe(x: object) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
