"""Measurements of a model: its attention matrices, the Jacobian of a layer, and how far tokens are apart."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.models.stack import Stack
from osa_runtime.nn.orthogonal import OrthogonalSelfAttention
from osa_runtime.nn.polynomial import PolynomialSelfAttention
from osa_runtime.nn.projection import ProjectedAttention
from osa_runtime.ops.attention import attention_matrix

ROWS = 256  # of the Jacobian at a time


def layers_of(model: nn.Module) -> dict[str, ProjectedAttention]:
    """The attention layers by name, in order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, ProjectedAttention)}


def matrices(layer: ProjectedAttention, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """A of each head for the tokens x (batch, N, dim), (batch, heads, N, N), so that the layer is W_O·A·V."""
    q, k, _ = layer.project(x)
    scores = q @ k.mT / layer.project.width**0.5
    if isinstance(layer, OrthogonalSelfAttention):
        scale = layer.alpha / layer.project.width**0.5
        return attention_matrix(q, k, scale, mask=None if mask is None else mask[:, None, :])
    padded = None if mask is None else ~mask[:, None, None, :]
    if isinstance(layer, PolynomialSelfAttention):
        real = x.new_tensor(x.size(1)) if mask is None else mask.sum(-1).to(x.dtype)[:, None, None, None]
        powers = scores**layer.power / real.sqrt()
        return powers if padded is None else powers.masked_fill(padded, 0.0)
    return (scores if padded is None else scores.masked_fill(padded, float("-inf"))).softmax(-1)


@contextlib.contextmanager
def recorded_inputs(model: nn.Module) -> Iterator[dict[str, tuple[Tensor, Tensor | None]]]:
    """While active, the tokens and the mask that each attention layer received last."""
    found: dict[str, tuple[Tensor, Tensor | None]] = {}

    def keep(name: str) -> Any:
        return lambda _, args: found.update({name: (args[0].detach(), args[1] if len(args) > 1 else None)})

    hooks = [layer.register_forward_pre_hook(keep(name)) for name, layer in layers_of(model).items()]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def exponent_norms(layer: OrthogonalSelfAttention, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """‖S‖₂ of each head, (batch, heads), from S itself in float64."""
    q, k, _ = (part.double() for part in layer.project(x))
    if mask is not None:
        q, k = (part.masked_fill(~mask[:, None, :, None], 0.0) for part in (q, k))
    products = q @ k.mT
    scale = (layer.alpha.double() / layer.project.width**0.5)[:, None, None]
    return torch.linalg.matrix_norm(scale * (products - products.mT), ord=2)


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


# Rank collapse takes the distance between tokens away. The next three are of x (..., N, D).


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
