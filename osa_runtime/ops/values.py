"""Decisions that depend on values: the values that a branch, a loop or a check may use.

Under ``torch.func.vmap`` a tensor stands for one entry of a batch that the caller cannot see; a branch is taken for the
whole batch, so the values of all entries decide. Meta and fake tensors have no values: checks are skipped, and the
shortest path determines the shapes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def any_of(condition: Tensor) -> bool:
    """True if the condition holds for any entry; False if there are no values."""
    if torch.jit.is_scripting():
        return bool(condition.any())
    return _any_of(condition)


def trip_count(count: Tensor) -> int:
    """The number of turns of a loop; 0 if there are no values."""
    if torch.jit.is_scripting():
        return int(count)
    return _trip_count(count)


@torch.jit.unused
def has_values(x: Tensor) -> bool:
    return not (x.is_meta or isinstance(x, torch._subclasses.FakeTensor))


@torch.jit.unused
def whole(x: Tensor) -> Tensor:
    """The tensor with the entries of all enclosing ``torch.func`` transforms."""
    return x if torch.compiler.is_compiling() else torch.func.debug_unwrap(x)


@torch.jit.unused
def _any_of(condition: Tensor) -> bool:
    if torch.compiler.is_compiling():
        return bool(condition.any())
    plain = whole(condition)
    return has_values(plain) and bool(plain.any())


@torch.jit.unused
def _trip_count(count: Tensor) -> int:
    return int(count) if torch.compiler.is_compiling() or has_values(count) else 0


@torch.jit.unused
def is_plain_eager(*tensors: Tensor) -> bool:
    """True if the tensors have values and neither a graph, a ``torch.func`` transform nor forward mode looks on."""
    looked_on = torch.compiler.is_compiling() or torch.autograd.forward_ad._current_level >= 0
    return not looked_on and all(whole(x) is x and has_values(x) for x in tensors)


@torch.jit.unused
def is_differentiated(*tensors: Tensor) -> bool:
    """True where a gradient of our own takes the place of autograd's: only in plain eager mode."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors) and is_plain_eager(*tensors)


@torch.jit.unused
def by_autograd(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of the inputs as functions of everything, for second derivatives."""
    # Views, because one input may be computed from another, or be the same tensor.
    views = [x.view_as(x) for x in inputs]
    needed = [x for x in views if x.requires_grad]
    found = iter(torch.autograd.grad(function(*views), needed, grad, create_graph=True))
    return tuple(next(found) if x.requires_grad else None for x in views)
