"""Orthogonal self-attention: exp(c(QKᵀ − KQᵀ))·V.

The options are meant to be passed by keyword. The signatures do not enforce it, because TorchScript compiles no
function with keyword-only defaults.
"""

from __future__ import annotations

from typing import Optional, Union  # TorchScript reads these annotations and does not support X | Y

import torch
from torch import Tensor

from osa_runtime.exponential import ExponentialMethod
from osa_runtime.ops.approximants import plus_identity
from osa_runtime.ops.checks import check_attention_inputs, check_overflow, check_skew
from osa_runtime.ops.dense import attention_expm1, dense_attention, skew_expm1
from osa_runtime.ops.entries import core_dtype, is_dense, one_batch_axis, per_entry
from osa_runtime.ops.interception import intercepted
from osa_runtime.ops.lowrank import lowrank_change
from osa_runtime.ops.opaque import opaque_attention


def orthogonal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Union[float, Tensor],
    mask: Optional[Tensor] = None,
    form: str = "auto",
    approximant: str = "taylor",
    squarings: Union[str, int] = "auto",
) -> Tensor:
    """Apply the orthogonal matrix exp(S), S = scale·(QKᵀ − KQᵀ), to V in time linear in the number of tokens.

    Args:
        q, k: (..., N, d) with the same leading dimensions.
        v: (..., N, e), any e.
        scale: a float, or a tensor that broadcasts over the leading dimensions, such as one α/√d per head.
        mask: (..., N) boolean, True for real tokens. Padded tokens are unchanged and influence no other token.
        form: "dense" (an N×N exponential), "lowrank" (a 2d×2d one), or "auto": dense while N ≤ 2d, and beyond, up to
            1024 tokens, where the low-rank form would lose its digits.
        approximant: "taylor", for polynomials with Taylor's or, in float32, Chebyshev's coefficients, or "pade".
        squarings: "auto" (as many as ‖S‖ needs), or a fixed number, valid for ‖S‖ up to about 0.8·2^squarings.

    The halves are computed in float32. NaN or Inf in an entry of the batch makes that entry NaN. The relative error is
    at most 2e-6·max(1, ‖S‖/4), or 1e-10·max(1, ‖S‖) for float64. If that cannot be kept, ExponentRangeError is
    raised; in exported graphs, and in the dense form compiled without gradients, which cannot raise, the entry is NaN.
    """
    if not torch.jit.is_scripting():
        check_attention_inputs(q, k, v, scale, mask, form, approximant, squarings)
        replacement = intercepted(q, k, v, scale, mask, form, approximant, squarings)
        if replacement is not None:
            return replacement
        if _is_opaque(form, q.size(-2), q.size(-1)):
            return opaque_attention(q, k, v, scale, mask, form, approximant, squarings)
        if not q.is_meta and torch.is_autocast_enabled(q.device.type):
            # Autocast would put the core's products into half precision. (Only where it is on: a captured graph would
            # keep the switch as a node.)
            with torch.autocast(q.device.type, enabled=False):
                outside = _in_core_type(q, k, v, scale, mask, form, approximant, squarings)
            check_overflow(outside, q, k, v, scale)
            return outside.to(v.dtype)
    out = _in_core_type(q, k, v, scale, mask, form, approximant, squarings)
    if not torch.jit.is_scripting():
        check_overflow(out, q, k, v, scale)
    return out.to(v.dtype)


def attention_matrix(q: Tensor, k: Tensor, scale: Union[float, Tensor], *, mask: Optional[Tensor] = None) -> Tensor:
    """exp(S) itself, (..., N, N). For study: it costs N² memory, which ``orthogonal_attention`` avoids."""
    check_attention_inputs(q, k, q, scale, mask, "dense", "taylor", "auto")
    core = core_dtype(q)
    q_core, k_core = q.to(core), k.to(core)
    if mask is not None:
        q_core = q_core.masked_fill(~mask[..., None], 0.0)
        k_core = k_core.masked_fill(~mask[..., None], 0.0)
    c = per_entry(scale, q_core)[..., None, None]
    change = attention_expm1(q_core, k_core, c, "taylor", -1, core == torch.float64)
    return plus_identity(change, 1.0).to(q.dtype)


def skew_exponential(s: Tensor, approximant: str = "taylor", squarings: Union[str, int] = "auto") -> Tensor:
    """exp(S) for a batch of skew matrices (..., n, n): orthogonal, with determinant 1."""
    if not torch.jit.is_scripting():
        check_skew(s, approximant, squarings)
    core = core_dtype(s)
    expm1 = skew_expm1(s.to(core), approximant, _squarings_count(squarings), core == torch.float64)
    return plus_identity(expm1, 1.0).to(s.dtype)


def _apply(
    q: Tensor, k: Tensor, v: Tensor, scale: Union[float, Tensor], mask: Optional[Tensor], how: ExponentialMethod
) -> Tensor:
    """``orthogonal_attention`` without its checks, for callers that have replaced it."""
    return _in_core_type(q, k, v, scale, mask, how.form, how.approximant, how.squarings).to(v.dtype)


def _in_core_type(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Union[float, Tensor],
    mask: Optional[Tensor],
    form: str,
    approximant: str,
    squarings: Union[str, int],
) -> Tensor:
    core = core_dtype(q)
    q_core, k_core, v_core = q.to(core), k.to(core), v.to(core)
    if mask is not None:
        # Filling, not multiplying: nothing in the padding, NaN included, may reach a real token.
        padded = ~mask[..., None]
        q_core, k_core = q_core.masked_fill(padded, 0.0), k_core.masked_fill(padded, 0.0)
        v_core = v_core.masked_fill(padded, 0.0)
    c = per_entry(scale, q_core)
    count, double = _squarings_count(squarings), core == torch.float64
    if is_dense(form, q.size(-2), q.size(-1)):
        out = dense_attention(q_core, k_core, v_core, c, approximant, count, double)
        # A padded token has zeros so far, or NaN with the rest of its entry.
        return out if mask is None else torch.where(mask[..., None], out, out + v.to(core))
    q_core, k_core, v_core, c = one_batch_axis(q_core, k_core, v_core, c)
    change = lowrank_change(q_core, k_core, v_core, c, approximant, count, double, form == "auto")
    return v.to(core) + change.reshape(v.shape)


def _squarings_count(squarings: Union[str, int]) -> int:
    if isinstance(squarings, int):
        return squarings
    return -1


@torch.jit.unused
def _is_opaque(form: str, tokens: int, width: int) -> bool:
    """Return whether a compiled graph has one node for the attention.

    The dense form without gradients is captured as it is: its loop can be a part of the graph.
    """
    if not torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting():
        return False
    return torch.is_grad_enabled() or not is_dense(form, tokens, width)
