"""exp(S)·V in float32 alone and without branches, for runtimes that have no float64.

The same formulas as elsewhere, with K sheared and a fixed number of squarings; NaN where float32 cannot hold the
digits. The eager twin of the ONNX functions with ``core="float32"``, made to be captured.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from osa_runtime.exponential import ExponentialMethod
from osa_runtime.ops.coefficients import LARGEST_AMPLIFICATION_ALONE, LARGEST_TERMS_ALONE, TINY_SQUARE
from osa_runtime.ops.dense import skew_expm1
from osa_runtime.ops.entries import is_dense, one_batch_axis, per_entry
from osa_runtime.ops.lowrank import applied, balanced_core, core_norm, gram_solution, sheared
from osa_runtime.ops.rounding import gram_amplification


def float32_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: Any, mask: Tensor | None, how: ExponentialMethod
) -> Tensor:
    """A replacement for ``intercept``; ``how`` has a fixed number of squarings."""
    if not isinstance(how.squarings, int):
        raise ValueError(f"squarings={how.squarings!r}: float32 alone needs a number.")
    q32, k32, v32 = q.float(), k.float(), v.float()
    if mask is not None:
        padded = ~mask[..., None]
        q32, k32, v32 = (x.masked_fill(padded, 0.0) for x in (q32, k32, v32))
    entries = one_batch_axis(q32, k32, v32, per_entry(scale, q32))
    change = dense_change if is_dense(how.form, q.size(-2), q.size(-1)) else lowrank_change
    return (v.float() + change(*entries, how.approximant, how.squarings).reshape(v.shape)).to(v.dtype)


def dense_change(q: Tensor, k: Tensor, v: Tensor, c: Tensor, approximant: str, squarings: int) -> Tensor:
    half = (q * _sound(q, k, c)) @ k.mT
    return skew_expm1(half - half.mT, approximant, squarings, False) @ v


def lowrank_change(q: Tensor, k: Tensor, v: Tensor, c: Tensor, approximant: str, squarings: int) -> Tensor:
    """|c| goes into the columns and V gets the size 1: products of very large and small factors stay in range."""
    sign, size = torch.where(c < 0, -torch.ones_like(c), torch.ones_like(c)), _sound(q, k, c).abs()
    k = sheared(q, k)
    q_columns, k_columns = q.mT * size, k.mT * size
    value = _largest(v)
    v = v / value
    products = (q_columns @ q, q_columns @ k, k_columns @ k, q_columns @ v, k_columns @ v)
    m, w, t = balanced_core(products, sign)
    m2 = m @ m
    # A W that is not finite makes its entry NaN: it may be out of range where V is not.
    norm = core_norm(m2) + 0.0 * w.square().sum((-2, -1))
    norm = torch.where(
        gram_amplification(m, norm) <= LARGEST_AMPLIFICATION_ALONE, norm, torch.full_like(norm, torch.nan)
    )
    for_q, for_k = gram_solution(m, m2, norm, w, t, sign, approximant, squarings, False)
    return applied(q, k, for_q, for_k) * value


def _sound(q: Tensor, k: Tensor, c: Tensor) -> Tensor:
    """The scale, NaN where S = c(QKᵀ − KQᵀ), with an error of eps·|c|·‖Q‖·‖K‖, has lost too many digits."""
    terms = length(q) * c.abs() * length(k)
    return torch.where(terms <= LARGEST_TERMS_ALONE, c, torch.full_like(c, torch.nan))


def length(x: Tensor) -> Tensor:
    """The Frobenius norm of each matrix (…, 1, 1), also where its square is out of range."""
    largest = _largest(x)
    return (x / largest).square().sum((-2, -1), True).sqrt() * largest


def _largest(x: Tensor) -> Tensor:
    return x.abs().amax((-2, -1), True).clamp(min=TINY_SQUARE)
