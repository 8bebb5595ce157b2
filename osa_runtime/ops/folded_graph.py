"""The folded layer in an exported program: whether it keeps the digits is a branch, whether it pays is not.

With a second branch on the number of tokens, an export with a dynamic length would take 1.6 times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

import torch
from torch import Tensor

from osa_runtime.ops.chebyshev import near_solution, stepped_solution
from osa_runtime.ops.folded import (
    centred,
    fewest_tokens,
    folded_map,
    judged_folded_core,
    mapped,
    of_each_head,
    packed_by_head,
)
from osa_runtime.ops.graph_control import branch

# The layer by queries, keys and values: x, [W_Q; W_K; W_V], W_O, the scales, and perhaps a mask.
ByParts = Callable[..., Tensor]


def surely_pays(tokens: int | torch.SymInt, dim: int, width: int) -> bool:
    """``folding_pays`` for a number of tokens that may be known by its range alone."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(tokens >= fewest_tokens(dim, width))


def folded_in_graph(
    x: Tensor, weight: Tensor, out_weight: Tensor, scale: Tensor, mask: Optional[Tensor], by_parts: ByParts
) -> Tensor:
    """The layer's output, by the folded map or, where that has lost digits, by parts."""
    x32, w32, into, c = (_in_float32(value) for value in (x, weight, out_weight, scale))
    packed = packed_by_head(w32, scale.size(0))
    x0, mean, rest, count = centred(x32, mask)
    gram = x0.mT @ x0
    level, core, f, from_mean = judged_folded_core(gram, mean, rest, count, packed, c)
    y = branch(level == 1, _stepped, _near, (*core, of_each_head(c, gram)))
    found = folded_map(y, f, from_mean, mean, packed, into)

    def other(x0: Tensor, t: Tensor, row: Tensor, *operands: Tensor) -> Tensor:  # noqa: ARG001
        return by_parts(*operands)

    def applied(
        x0: Tensor, t: Tensor, row: Tensor, x: Tensor, weight: Tensor, into: Tensor, scale: Tensor, *mask: Tensor
    ) -> Tensor:
        out = mapped(_in_float32(x), x0, t, row, _in_float32(weight), _in_float32(into), scale.size(0), *mask)
        return out if out.dtype == x.dtype else out.to(x.dtype)

    masks = () if mask is None else (mask,)
    return branch(level > 1, other, applied, (x0, *found, x, weight, out_weight, scale, *masks))


def _in_float32(x: Tensor) -> Tensor:
    """A conversion that changes nothing would be an operator of the program, and hide where a value comes from."""
    return x if x.dtype == torch.float32 else x.float()


def _stepped(m: Tensor, m2: Tensor, norm: Tensor, w: Tensor, c: Tensor) -> Tensor:
    return torch.cat(stepped_solution(m, m2, norm, w, torch.ones_like(c), c), -2)


def _near(m: Tensor, m2: Tensor, norm: Tensor, w: Tensor, c: Tensor) -> Tensor:  # noqa: ARG001
    return torch.cat(near_solution(m, m2, w, torch.ones_like(c), c), -2)
