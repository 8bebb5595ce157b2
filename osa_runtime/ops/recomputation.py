"""Gradients without intermediates: what is small is computed again in the backward pass instead of being kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from osa_runtime.ops.values import is_differentiated

Result = TypeVar("Result")


def recomputed(function: Callable[..., Result], *arguments: Any) -> Result:
    """The function of the arguments; where gradients are taken, only the arguments are kept for them."""
    if not is_differentiated(*(x for x in tree_leaves(arguments) if isinstance(x, Tensor))):
        return function(*arguments)
    result: Result = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return result


def gram_of(x: Tensor) -> Tensor:
    """XᵀX."""
    return _Gram.apply(x) if is_differentiated(x) else x.mT @ x


class _Gram(torch.autograd.Function):
    """Its gradient X(G + Gᵀ) is one product of length N, where autograd takes two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.mT @ x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return x @ (grad + grad.mT)
