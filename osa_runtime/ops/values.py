"""Decisions that depend on values: the values that a branch, a loop or a check may use.

Under ``torch.func.vmap`` a tensor stands for one entry of a batch that the caller cannot see; a branch is taken for the
whole batch, so the values of all entries decide. Meta and fake tensors have no values: checks are skipped, and the
shortest path determines the shapes.
"""

from __future__ import annotations

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
