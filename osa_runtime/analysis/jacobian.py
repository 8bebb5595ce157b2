"""Jacobians of layers and stacks, whole, and their extreme singular values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ROWS = 256  # of the Jacobian at a time


def jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The matrix of ∂function(x)/∂x for x (1, N, D), (N·D, N·D).

    The entries of a batch do not depend on each other, so a batch of copies has a row of the Jacobian in each gradient:
    plain reverse mode, for any module.
    """
    size = x.numel()
    rows = []
    for start in range(0, size, ROWS):
        count = min(ROWS, size - start)
        copies = x.detach().expand(count, *x.shape[1:]).clone().requires_grad_()
        out = function(copies).flatten(1)
        (gradient,) = torch.autograd.grad(out[torch.arange(count), torch.arange(start, start + count)].sum(), copies)
        rows.append(gradient.flatten(1))
    return torch.cat(rows)


def extreme_singular_values(matrix: Tensor) -> tuple[float, float]:
    """The largest and the smallest."""
    values = torch.linalg.svdvals(matrix.double())
    return float(values[0]), float(values[-1])


def condition_number(function: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """σ₁/σₙ of the Jacobian at x; infinite if the smallest is zero."""
    largest, smallest = extreme_singular_values(jacobian(function, x))
    return largest / smallest if smallest > 0 else float("inf")
