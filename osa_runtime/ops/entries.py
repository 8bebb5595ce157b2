"""The entries of a batch: the type that they are computed in, their scales, and the form."""

from __future__ import annotations

from typing import Union  # TorchScript reads these annotations and does not support X | Y

import torch
from torch import Tensor


def core_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def per_entry(scale: Union[float, Tensor], like: Tensor) -> Tensor:
    """The scale as a tensor that broadcasts over the batch; NaN where the core's type has no digits of it."""
    smallest = 1.1754943508222875e-38 if like.dtype == torch.float32 else 0.0
    if isinstance(scale, Tensor):
        if scale.dtype == torch.float64:
            scale = scale.masked_fill((scale.abs() < smallest) & (scale != 0), float("nan"))
        return scale.to(like.dtype)
    if scale != 0 and abs(scale) < smallest:
        scale = float("nan")
    return torch.full([], scale, dtype=like.dtype, device=like.device)


def one_batch_axis(q: Tensor, k: Tensor, v: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same with one batch axis; views of a packed projection are copied once, as every product would copy them."""
    c = c[..., None, None].expand_as(q[..., :1, :1]).reshape(-1, 1, 1)
    return stacked(q), stacked(k), stacked(v), c


def stacked(x: Tensor) -> Tensor:
    return x.reshape(-1, x.size(-2), x.size(-1))


def is_dense(form: str, tokens: int, width: int) -> bool:
    if form == "auto":
        if torch.jit.is_scripting():
            return tokens <= 2 * width
        return _known_to_fit(tokens, width)
    return form == "dense"


@torch.jit.unused
def _known_to_fit(tokens: int, width: int) -> bool:
    """N ≤ 2d; in an exported graph with a dynamic N the low-rank form, which is valid for every N."""
    if not torch.compiler.is_exporting():
        return tokens <= 2 * width
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(tokens <= 2 * width)
