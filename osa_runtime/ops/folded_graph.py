"""The folded layer in an exported program, where its two decisions are branches: does it pay, and is it exact?

The first depends on the number of tokens alone, and is taken at export where that is fixed.
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
    without_mean,
)
from osa_runtime.ops.graph_control import branch, branches

# The layer by queries, keys and values: x, [W_Q; W_K; W_V], W_O, the scales, and perhaps a mask.
ByParts = Callable[..., Tensor]


def folded_in_graph(
    x: Tensor, weight: Tensor, out_weight: Tensor, scale: Tensor, mask: Optional[Tensor], by_parts: ByParts
) -> Optional[Tensor]:
    """The layer's output, with ``by_parts`` as the way that it takes otherwise; None if it would always take that."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    tokens, fewest = x.size(1), fewest_tokens(x.size(2), weight.size(0) // (3 * scale.size(0)))
    if statically_known_true(tokens < fewest):
        return None
    operands = (x, weight, out_weight, scale, *(() if mask is None else (mask,)))
    if statically_known_true(tokens >= fewest):
        found = _found(*operands)
    else:
        found = branches(torch.full([], tokens, device=x.device) >= fewest, _found, _not_sought, operands)

    def other(level: Tensor, mean: Tensor, folded: Tensor, row: Tensor, *operands: Tensor) -> Tensor:  # noqa: ARG001
        return by_parts(*operands)

    return branch(found[0] > 1, other, _applied, (*found, *operands))


def _found(x: Tensor, weight: Tensor, out_weight: Tensor, scale: Tensor, *mask: Tensor) -> tuple[Tensor, ...]:
    """The level of precision, beyond 1 where the rest is of no use; the mean, T and the mean's row."""
    packed = packed_by_head(weight.float(), scale.size(0))
    x0, mean, rest, count = centred(x.float(), *mask)
    gram, c = x0.mT @ x0, scale.float()
    level, core, f, from_mean = judged_folded_core(gram, mean, rest, count, packed, c)
    y = branch(level == 1, _stepped, _near, (*core, of_each_head(c, gram)))
    return level, mean, *folded_map(y, f, from_mean, mean, packed, out_weight.float())


def _not_sought(x: Tensor, weight: Tensor, out_weight: Tensor, *_: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG001
    x, dim, width = x[:, :1].float(), x.size(2), out_weight.size(0)
    level = torch.full([], 2, dtype=torch.int64, device=x.device)
    return level, torch.zeros_like(x), x.new_zeros(x.size(0), dim, width), x.new_zeros(x.size(0), 1, width)


def _applied(
    level: Tensor,  # noqa: ARG001
    mean: Tensor,
    folded: Tensor,
    row: Tensor,
    x: Tensor,
    weight: Tensor,
    out_weight: Tensor,
    scale: Tensor,
    *mask: Tensor,
) -> Tensor:
    x32 = x.float()
    x0 = without_mean(x32, mean, *mask)
    return mapped(x32, x0, folded, row, weight.float(), out_weight.float(), scale.size(0), *mask).to(x.dtype)


def _stepped(m: Tensor, m2: Tensor, norm: Tensor, w: Tensor, c: Tensor) -> Tensor:
    return torch.cat(stepped_solution(m, m2, norm, w, torch.ones_like(c), c), -2)


def _near(m: Tensor, m2: Tensor, norm: Tensor, w: Tensor, c: Tensor) -> Tensor:  # noqa: ARG001
    return torch.cat(near_solution(m, m2, w, torch.ones_like(c), c), -2)
