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

    The state starts with the number of turns that are left.
    """
    from torch._higher_order_ops import while_loop

    if _traced_directly():
        left, *results = torch.ops.higher_order.while_loop(unfinished, body, state, fixed)
    else:
        left, *results = while_loop(lambda *s: unfinished(*s, *fixed), lambda *s: body(*s, *fixed), state)
    # AOTInductor of torch 2.13 reuses the memory of a state that no turn has replaced, unless the result depends on
    # the number of turns. The factor is 1.
    return left, *(result * (left <= 0) for result in results)


def _traced_directly() -> bool:
    return not torch.compiler.is_dynamo_compiling() and not torch.is_grad_enabled()
