"""Branches and loops as parts of a captured graph.

``torch.cond`` and ``while_loop`` have their bodies compiled first, to find the tensors that they close over. Ours close
over numbers and words alone, so that an export without gradients can trace them as they are, in 60 % of the time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


@torch.jit.unused
def captures_control_flow() -> bool:
    """Return whether a loop or a branch must become part of a graph.

    True in an exported program and in a compiled one without gradients. With gradients, which graph loops do not
    have, the attention is one node of a compiled program (``opaque.py``), and other callers break the graph.
    """
    return torch.compiler.is_exporting() or (torch.compiler.is_compiling() and not torch.is_grad_enabled())


@torch.jit.unused
def branch(
    condition: Tensor, yes: Callable[..., Tensor], no: Callable[..., Tensor], operands: tuple[Tensor, ...]
) -> Tensor:
    if not _traced_directly():
        result: Tensor = torch.cond(condition, yes, no, operands)
        return result
    # Compilers of exported programs expect a branch to return a tuple.
    (result,) = torch.ops.higher_order.cond(condition, lambda *x: (yes(*x),), lambda *x: (no(*x),), operands)
    return result


@torch.jit.unused
def loop(
    unfinished: Callable[..., Tensor],
    body: Callable[..., tuple[Tensor, ...]],
    state: tuple[Tensor, ...],
    fixed: tuple[Tensor, ...] = (),
) -> tuple[Tensor, ...]:
    """The state after turns while ``unfinished`` is true of it; ``fixed`` is read by the turns and not changed.

    The state starts with the number of turns that are left. AOTInductor of torch 2.13 returns memory that it has used
    for something else where a loop takes no turn. So there is always one, which changes nothing where none was due.
    """
    from torch._higher_order_ops import while_loop

    left, *values = state
    none_due = left <= 0

    def turn(left: Tensor, *operands: Tensor) -> tuple[Tensor, ...]:
        *given, none_due = operands
        left, *after = body(left, *given)
        return left, *(torch.where(none_due, old, new) for old, new in zip(given, after, strict=False))

    def goes_on(left: Tensor, *operands: Tensor) -> Tensor:
        return unfinished(left, *operands[:-1])

    started, constant = (left.clamp(min=1), *values), (*fixed, none_due)
    result: tuple[Tensor, ...]
    if _traced_directly():
        result = torch.ops.higher_order.while_loop(goes_on, turn, started, constant)
    else:
        result = while_loop(lambda *s: goes_on(*s, *constant), lambda *s: turn(*s, *constant), started)
    return result


def _traced_directly() -> bool:
    return not torch.compiler.is_dynamo_compiling() and not torch.is_grad_enabled()
