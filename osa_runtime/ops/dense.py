"""The dense form, for N ≤ 2d: S is formed as an N×N matrix, which is skew and therefore normal."""

from __future__ import annotations

import torch
from torch import Tensor

from osa_runtime.ops.approximants import scaled_expm1
from osa_runtime.ops.dense_gradient import eager_change
from osa_runtime.ops.rounding import check_digits, is_lost_in_terms
from osa_runtime.ops.scaling import doubled_expm1, reach, scaling


def skew_matrix(q: Tensor, k: Tensor, c: Tensor) -> Tensor:
    """S = c(QKᵀ − KQᵀ), skew to the last bit: one product and its own transpose.

    In float64: where S is small by cancellation (tokens with a common mean, K almost a multiple of Q), rounding the
    products to float32 first would cost its leading digits. One product of an N×N exponential is cheap.
    """
    half = q.to(torch.float64) @ (k.to(torch.float64) * c.to(torch.float64)).mT
    return (half - half.mT).to(q.dtype)


def skew_norm(s2: Tensor) -> Tensor:
    """(‖S²‖_F²/2)^¼, an upper bound of ‖S‖₂ for each skew matrix, from S².

    The eigenvalues come in pairs ±iσ, so 2σ_max⁴ ≤ Σσ⁴ = ‖S²‖_F². Beyond the range of float32 it is infinite, which is
    out of range; where the squares vanish, so does the exponent.
    """
    return (s2.detach().square().sum((-2, -1)) / 2).sqrt().sqrt()


def skew_expm1(s: Tensor, approximant: str, squarings: int, double: bool) -> Tensor:
    """e^S − I for skew S. ``squarings`` < 0 means as many as the norm needs."""
    one_batch_axis = s.reshape(-1, s.size(-2), s.size(-1))
    s2 = one_batch_axis @ one_batch_axis
    factor, count = scaling(skew_norm(s2), reach(approximant, "dense", double), squarings, double)
    return doubled_expm1(scaled_expm1(one_batch_axis, s2, factor, approximant, double), count, squarings).reshape(
        s.shape
    )


def attention_expm1(q: Tensor, k: Tensor, c: Tensor, approximant: str, squarings: int, double: bool) -> Tensor:
    """e^S − I for S = c(QKᵀ − KQᵀ), NaN for entries whose S has no digits."""
    s = skew_matrix(q, k, c)
    size = torch.linalg.vector_norm(s.detach().to(torch.float64), dim=(-2, -1))
    lost = is_lost_in_terms(q, k, c, size, double)
    if not torch.jit.is_scripting():
        check_digits(lost)
    return skew_expm1(s, approximant, squarings, double).masked_fill(lost[..., None, None], float("nan"))


def dense_change(q: Tensor, k: Tensor, v: Tensor, c: Tensor, approximant: str, squarings: int, double: bool) -> Tensor:
    """(e^S − I)·V with S = c(QKᵀ − KQᵀ)."""
    if not torch.jit.is_scripting():  # noqa: SIM102  # TorchScript skips the body only when this stands alone
        if approximant == "taylor" and squarings < 0:
            change = eager_change(q, k, v, c, double)
            if change is not None:
                return change
    return plain_change(q, k, v, c, approximant, squarings, double)


def plain_change(q: Tensor, k: Tensor, v: Tensor, c: Tensor, approximant: str, squarings: int, double: bool) -> Tensor:
    """``dense_change`` as graphs capture it and autograd follows it."""
    return attention_expm1(q, k, c, approximant, squarings, double) @ v
