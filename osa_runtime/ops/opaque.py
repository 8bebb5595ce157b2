"""Orthogonal attention as one opaque node of a compiled graph.

``torch.compile`` can neither differentiate a loop nor branch on values with dynamic sizes without leaving the graph. As
a custom operator the attention runs in eager mode inside the compiled program: no graph break, the same answers, the
same errors. Its gradient is another operator, which computes the attention again instead of keeping intermediates.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Optional, Union  # the operators' schemas are read from these

import torch
from torch import Tensor


def opaque_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Union[float, Tensor],
    mask: Optional[Tensor],
    form: str,
    approximant: str,
    squarings: Union[str, int],
) -> Tensor:
    factor = scale if isinstance(scale, Tensor) else torch.full([], scale, dtype=torch.float64, device=q.device)
    return _attention(q, k, v, factor, mask, form, approximant, squarings if isinstance(squarings, int) else -1)


@torch.library.custom_op("osa::orthogonal_attention", mutates_args=())
def _attention(
    q: Tensor, k: Tensor, v: Tensor, scale: Tensor, mask: Optional[Tensor], form: str, approximant: str, squarings: int
) -> Tensor:
    return _eager(q, k, v, scale, mask, form, approximant, squarings).contiguous()


@_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Tensor:  # noqa: ARG001
    return torch.empty_like(v, memory_format=torch.contiguous_format)


@torch.library.custom_op("osa::orthogonal_attention_backward", mutates_args=())
def _gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    mask: Optional[Tensor],
    form: str,
    approximant: str,
    squarings: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with torch.enable_grad(), _autograd_below_operators():
        q, k, v, scale = (x.detach().requires_grad_() for x in (q, k, v, scale))
        out = _eager(q, k, v, scale, mask, form, approximant, squarings)
        for_q, for_k, for_v, for_scale = (x.contiguous() for x in torch.autograd.grad(out, (q, k, v, scale), grad))
    return for_q, for_k, for_v, for_scale


@_gradients.register_fake
def _(
    grad: Tensor,  # noqa: ARG001
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    *others: Any,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    for_q, for_k, for_v, for_scale = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v, scale)
    )
    return for_q, for_k, for_v, for_scale


@contextlib.contextmanager
def _autograd_below_operators() -> Iterator[None]:
    """Switch autograd on inside an operator, where torch has left it behind."""
    kept = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView"):
        kept = kept.remove(getattr(torch._C.DispatchKey, key))
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), kept):
        yield


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    *tensors, ctx.form, ctx.approximant, ctx.squarings = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    gradients = _gradients(grad, *ctx.saved_tensors, ctx.form, ctx.approximant, ctx.squarings)
    return *gradients, None, None, None, None


_attention.register_autograd(_backward, setup_context=_keep)


def _eager(
    q: Tensor, k: Tensor, v: Tensor, scale: Tensor, mask: Optional[Tensor], form: str, approximant: str, squarings: int
) -> Tensor:
    from osa_runtime.ops.attention import orthogonal_attention  # which imports this module

    count: Union[str, int] = "auto" if squarings < 0 else squarings
    return orthogonal_attention(q, k, v, scale, mask, form, approximant, count)
