"""The definition, slow, obvious and in float64, against which the operators are measured. It shares no code with them.

iS is Hermitian for skew S, so exp(S) = U·diag(e^{−iλ})·Uᴴ from its eigenvectors: no series, no scaling.
"""

from __future__ import annotations

import torch
from torch import Tensor


def skew_exponential(s: Tensor) -> Tensor:
    """exp(S) of skew matrices (..., n, n), in float64."""
    eigenvalues, vectors = torch.linalg.eigh(1j * s.to(torch.complex128))
    phases = torch.exp(-1j * eigenvalues)
    return torch.einsum("...ij,...j,...kj->...ik", vectors, phases, vectors.conj()).real


def attention_matrix(q: Tensor, k: Tensor, scale: float | Tensor) -> Tensor:
    """exp(scale·(QKᵀ − KQᵀ)), (..., N, N), in float64."""
    q, k = q.to(torch.float64), k.to(torch.float64)
    products = torch.einsum("...id,...jd->...ij", q, k)
    factor = torch.as_tensor(scale, dtype=torch.float64, device=q.device)[..., None, None]
    return skew_exponential(factor * (products - products.transpose(-1, -2)))


def orthogonal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """exp(S)·V in float64. With a mask, the real tokens of each entry are taken out, mixed and put back."""
    if mask is None:
        return attention_matrix(q, k, scale) @ v.to(torch.float64)
    lead = q.shape[:-2]
    factors = torch.as_tensor(scale, dtype=torch.float64, device=q.device).expand(lead).reshape(-1)
    masks = mask.expand(q.shape[:-1]).reshape(-1, q.shape[-2])
    flat_q, flat_k = q.reshape(-1, *q.shape[-2:]), k.reshape(-1, *k.shape[-2:])
    out = v.to(torch.float64).reshape(-1, *v.shape[-2:]).clone()
    for entry, real in enumerate(masks):
        if real.any():
            a = attention_matrix(flat_q[entry, real], flat_k[entry, real], factors[entry])
            out[entry, real] = a @ out[entry, real]
    return out.reshape(v.shape)


def lowrank_orthogonal_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float | Tensor, mask: Tensor | None = None
) -> Tensor:
    """exp(S)·V in float64 and in time linear in N, by Theorem 2.1. The rows of padded tokens are zero in Q and K."""
    q, k, values = (x.to(torch.float64) for x in (q, k, v))
    if mask is not None:
        q, k, values = (x.masked_fill(~mask[..., None], 0.0) for x in (q, k, values))
    basis, core = orthonormal_core(q, k, scale)
    return v.to(torch.float64) + _in_basis(basis, skew_exponential(core), values)


def paper_attention(q: Tensor, k: Tensor, v: Tensor, scale: float | Tensor) -> Tensor:
    """exp(S)·V as the paper evaluates it, in the type of the inputs: reduced QR and ``matrix_exp``."""
    basis, core = orthonormal_core(q, k, scale)
    return v + _in_basis(basis, torch.linalg.matrix_exp(core), v)


def orthonormal_core(q: Tensor, k: Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor]:
    """B and BᵀSB of Theorem 2.1 (arXiv 2602.05996), exp(S) = I + B·(exp(BᵀSB) − I)·Bᵀ.

    B is from a reduced QR of [Q K] = B·[R_Q R_K], so BᵀSB = c(R_Q·R_Kᵀ − R_K·R_Qᵀ).
    """
    basis, triangle = torch.linalg.qr(torch.cat([q, k], -1))
    r_q, r_k = triangle.split(q.size(-1), -1)
    factor = torch.as_tensor(scale, dtype=q.dtype, device=q.device)[..., None, None]
    return basis, factor * (r_q @ r_k.mT - r_k @ r_q.mT)


def _in_basis(basis: Tensor, rotation: Tensor, v: Tensor) -> Tensor:
    """B·(rotation − I)·Bᵀ·V."""
    identity = torch.eye(rotation.size(-1), dtype=rotation.dtype, device=rotation.device)
    return basis @ ((rotation - identity) @ (basis.mT @ v))
