"""Checks of the arguments of the operators."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from osa_runtime.errors import ExponentRangeError, InputError
from osa_runtime.exponential import check_evaluation
from osa_runtime.ops.values import any_of, has_values, whole


def check_attention_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | Tensor,
    mask: Tensor | None,
    form: str,
    approximant: str,
    squarings: str | int,
) -> None:
    _check_tensors(q, k, v)
    _check_shapes(q, k, v)
    _check_scale(scale, q)
    if mask is not None:
        _check_mask(mask, q)
    check_evaluation(form, approximant, squarings)


def check_skew(s: Tensor, approximant: str, squarings: str | int) -> None:
    if not isinstance(s, Tensor) or not s.is_floating_point():
        raise InputError(f"skew_exponential expects a floating-point tensor, got {_kind(s)}.")
    if s.dim() < 2 or s.size(-1) != s.size(-2) or s.size(-1) == 0:
        raise InputError(f"skew_exponential expects square matrices (..., n, n) with n ≥ 1, got {tuple(s.shape)}.")
    check_evaluation("dense", approximant, squarings)
    if torch.compiler.is_compiling() or s.numel() == 0 or not has_values(s):
        return
    defect, largest = _largest(s + s.mT), _largest(s)
    # NaN compares false and passes: it comes out as NaN.
    if defect > 8 * torch.finfo(s.dtype).eps * largest:
        raise InputError(
            f"skew_exponential expects S = −Sᵀ, but max|S + Sᵀ| is {defect:.3g} where max|S| is {largest:.3g}. "
            "Pass (S − Sᵀ)/2, or use torch.linalg.matrix_exp for matrices that are not skew."
        )


def check_overflow(out: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float | Tensor) -> None:
    """In eager mode, raise if finite inputs have a result that is not, before or after rounding to their type."""
    if torch.compiler.is_compiling():
        return
    rounded = whole(out.detach()).to(v.dtype)
    # A sum that is finite has no term that is not, and takes a tenth of the time.
    if not has_values(rounded) or math.isfinite(rounded.sum(dtype=out.dtype)) or not any_of(~torch.isfinite(rounded)):
        return
    if any(any_of(~torch.isfinite(torch.as_tensor(x).detach())) for x in (q, k, v, scale)):
        return
    if not any_of(~torch.isfinite(out.detach())):
        raise ExponentRangeError(
            f"The result reaches {_largest(out):.3g}, beyond the largest {v.dtype}, {torch.finfo(v.dtype).max:.3g}: "
            f"max|v| is {_largest(v):.3g}. Reduce v, or compute in float32."
        )
    raise ExponentRangeError(
        f"The products of q, k and v overflow: max|q| is {_largest(q):.3g}, max|k| is {_largest(k):.3g}, "
        f"max|v| is {_largest(v):.3g}. Reduce their norms or the scale."
    )


def _largest(x: Tensor) -> float:
    return float(whole(x.detach()).abs().max())


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise InputError(f"{name} must be a floating-point tensor, got {_kind(x)}.")
    if not q.dtype == k.dtype == v.dtype:
        raise InputError(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype} and {v.dtype}; cast them first.")
    if not q.device == k.device == v.device:
        raise InputError(f"q, k and v must be on one device, got {q.device}, {k.device} and {v.device}.")


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    if min(q.dim(), k.dim(), v.dim()) < 2 or q.shape != k.shape or q.shape[:-1] != v.shape[:-1]:
        raise InputError(
            "q and k must be (..., N, d) and v (..., N, e) with the same leading dimensions and N, "
            f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}."
        )
    if 0 in q.shape or 0 in v.shape:
        raise InputError(f"No dimension may be empty, got q {tuple(q.shape)} and v {tuple(v.shape)}.")


def _check_scale(scale: float | Tensor, q: Tensor) -> None:
    if not isinstance(scale, Tensor):
        if isinstance(scale, bool) or not isinstance(scale, (int, float)):
            raise InputError(f"scale must be a number or a tensor, got {_kind(scale)}.")
        if abs(scale) > torch.finfo(torch.float64).max and isinstance(scale, int):
            raise InputError("scale is an integer beyond the range of float64; pass a smaller number.")
        _check_scale_range(torch.tensor(scale, dtype=torch.float64), q)
        return
    if scale.is_complex() or scale.dtype == torch.bool:
        raise InputError(f"scale must be a real number or a tensor of them, got {_kind(scale)}.")
    if scale.device != q.device and scale.dim() > 0:
        raise InputError(f"scale must be on the device of q, {q.device}, got {scale.device}.")
    if not _broadcasts(scale.shape, q.shape[:-2]):
        raise InputError(
            f"scale of shape {tuple(scale.shape)} does not broadcast over the leading dimensions "
            f"{tuple(q.shape[:-2])} of q; pass a number, or one value per head."
        )
    _check_scale_range(scale, q)


def _check_scale_range(scale: Tensor, q: Tensor) -> None:
    """In eager mode, raise if float32, in which all types but float64 are computed, has no digits of the scale."""
    if scale.dtype != torch.float64 or q.dtype == torch.float64 or torch.compiler.is_compiling():
        return
    smallest, size = torch.finfo(torch.float32).tiny, scale.detach().abs()
    if any_of((size > 0) & (size < smallest)):
        raise ExponentRangeError(
            f"scale is {_smallest(scale):.3g}; q, k and v in {q.dtype} are computed in float32, where numbers below "
            f"{smallest:.3g} lose their digits. Move a power of two from q or k to scale, or use float64."
        )


def _smallest(x: Tensor) -> float:
    values = whole(x.detach()).abs()
    return float(values[values > 0].min())


def _check_mask(mask: Tensor, q: Tensor) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise InputError(f"mask must be a boolean tensor, True for real tokens, got {_kind(mask)}; use mask.bool().")
    if mask.dim() < 1 or mask.shape[-1] != q.shape[-2] or not _broadcasts(mask.shape, q.shape[:-1]):
        raise InputError(
            f"mask of shape {tuple(mask.shape)} does not fit: expected (..., N) that broadcasts to "
            f"{tuple(q.shape[:-1])}, as (batch, 1, N) does for q of (batch, heads, N, d)."
        )


def _broadcasts(shape: torch.Size, target: torch.Size) -> bool:
    """True if ``shape`` broadcasts to ``target`` without enlarging it."""
    if len(shape) > len(target):
        return False
    return all(a == b or a == 1 for a, b in zip(reversed(shape), reversed(target), strict=False))


def _kind(x: object) -> str:
    return str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
