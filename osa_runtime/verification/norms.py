"""‖S‖₂ of orthogonal attention, and what a layer of ours makes of it: its bound and its number of squarings."""

from __future__ import annotations

import torch
from torch import Tensor

from osa_runtime.ops.dense import skew_matrix, skew_norm
from osa_runtime.ops.gram import core_norm, gram_core, sheared
from osa_runtime.ops.scaling import most_squarings, reach, squarings_needed

STEPS = 8


def spectral_norm(q: Tensor, k: Tensor, scale: Tensor) -> Tensor:
    """‖S‖₂ for each entry, by power iteration in float64 on the factors, in time linear in N.

    From below, and within some ten percent, which is enough to scale a tolerance.
    """
    q, k = q.to(torch.float64), k.to(torch.float64)
    c = scale.to(torch.float64)[..., None, None]
    x = torch.randn(*q.shape[:-1], 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    norm = torch.zeros(q.shape[:-2], dtype=torch.float64)
    for _ in range(STEPS):
        x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-300)
        x = c * (q @ (k.mT @ x) - k @ (q.mT @ x))
        norm = torch.linalg.matrix_norm(x)
    return norm


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x.masked_fill(~mask[..., None].expand_as(x), 0.0)


def squarings_of(q: Tensor, k: Tensor, scale: Tensor, form: str, approximant: str) -> tuple[int, float]:
    """How many squarings these queries and keys ask for, and the upper bound of ‖S‖₂ that says so."""
    c = scale.to(torch.float64)[..., None, None]
    dense = form == "dense" or (form != "lowrank" and q.size(-2) <= 2 * q.size(-1))
    if dense:
        s = skew_matrix(q.to(torch.float64), k.to(torch.float64), c)
        norm = skew_norm(s @ s)
    else:
        f = sheared(torch.cat([q, k], -1).to(torch.float64))
        m, _, _ = gram_core(f, f, c)
        norm = core_norm(m @ m)
    theta = reach(approximant, "dense" if dense else "lowrank", False)
    count = squarings_needed(norm, theta, most_squarings(False))
    return int(count), float(norm.amax())
