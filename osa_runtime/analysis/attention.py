"""The attention matrices of a model's layers, whatever their mechanism."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.nn.orthogonal import OrthogonalSelfAttention
from osa_runtime.nn.polynomial import PolynomialSelfAttention
from osa_runtime.nn.projection import ProjectedAttention
from osa_runtime.ops.attention import attention_matrix


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
