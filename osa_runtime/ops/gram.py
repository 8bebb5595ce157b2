"""The low-rank form, for N > 2d: everything of size N enters through the Gram matrix of F = [Q K].

    exp(S)V = V + F·J·φ₁(GJ)·(FᵀV),   G = FᵀF,   J = c·[[0, I], [−I, 0]],   S = F J Fᵀ

M = GJ has the eigenvalues of S but is not normal. Two remedies, derived in ``README.md``: Q and K are balanced
on the core, and where M is so far from normal that float32 would lose digits, the form is redone in float64.

Dimensions: n tokens, d per head, m = 2d, e the width of V.
"""

from __future__ import annotations

import torch
from torch import Tensor

from osa_runtime.ops.coefficients import FLOAT32_AMPLIFICATION
from osa_runtime.ops.pade import pade_phi1
from osa_runtime.ops.scaling import check_amplification, double_phi1, reach, scaling
from osa_runtime.ops.taylor import taylor_phi1


def lowrank_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    approximant: str,
    squarings: int,
    double: bool,
    limit: float = FLOAT32_AMPLIFICATION,
) -> Tensor:
    """(e^S − I)V. ``double`` says that the result is float64; ``squarings`` < 0 means as many as needed."""
    f_nm = torch.cat([q, k], -1)
    if double:
        return _in_float64(f_nm, v, scale, approximant, squarings, True)
    m_mm, w_me, balance = gram_core(f_nm, v, scale)
    m2_mm = m_mm @ m_mm
    in_doubt = (rounding_amplification(m_mm, m2_mm) > limit).any()
    if not torch.jit.is_scripting():  # noqa: SIM102  # TorchScript skips the body only when this stands alone
        if torch.compiler.is_exporting():
            core = (m_mm, m2_mm, w_me, balance)
            return _branch_in_graph(in_doubt, f_nm, v, scale, core, approximant, squarings)
    # Under torch.compile this is a graph break: its own branches fail to capture with dynamic sizes (torch 2.13).
    if bool(in_doubt):
        return _in_float64(f_nm, v, scale, approximant, squarings, False)
    return f_nm @ _core_solution(m_mm, m2_mm, w_me, balance, scale, approximant, squarings, False)


def gram_core(f_nm: Tensor, v_ne: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """M = GJ and W = FᵀV for the balanced F, and the balance (…, m, 1) that undoes it.

    Q ← tQ and K ← K/t leave S as it is; t is a power of two, so that they cost no rounding.
    """
    d = f_nm.size(-1) // 2
    g, w = f_nm.transpose(-1, -2) @ f_nm, f_nm.transpose(-1, -2) @ v_ne
    squares = g.detach().diagonal(dim1=-2, dim2=-1)
    q_squares, k_squares = squares[..., :d], squares[..., d:]
    t = torch.exp2(torch.round(torch.log2(k_squares.sum(-1, True) / q_squares.sum(-1, True)) / 4))
    t = torch.where((t > 0) & torch.isfinite(t), t, torch.ones_like(t)).expand_as(q_squares)
    balance = torch.cat([t, 1 / t], -1)[..., None]
    g = balance * g * balance.mT
    return scale * torch.cat([-g[..., d:], g[..., :d]], -1), balance * w, balance


def rounding_amplification(m: Tensor, m2: Tensor) -> Tensor:
    """max_j ‖M e_j‖² / max(‖M² e_j‖^½, 1) for each entry: what rounding G to float32 is multiplied by in the result.

    It is about ‖S‖ where M is close to skew, and larger where S is small by cancellation: K almost a multiple of
    Q, or tokens that are dominated by their mean.
    """
    square, square2 = m.detach().square().sum(-2), m2.detach().square().sum(-2)
    return (square / square2.sqrt().sqrt().clamp(min=1.0)).amax(-1)


def core_norm(m2: Tensor) -> Tensor:
    """An upper bound of ‖S‖₂ for each entry, from M².

    M² has the squares −σ² of the d pairs of eigenvalues ±iσ of S, so its trace gives their mean and ‖M²‖_F² a bound of
    their variance; no value is farther from the mean than √(d − 1) standard deviations. ‖S‖₂ alone decides the
    truncation error, although M is not normal: F·J·p(GJ)·Fᵀ = S·p(S) for every polynomial p.
    """
    pairs = m2.size(-1) / 2
    mean = m2.detach().diagonal(dim1=-2, dim2=-1).sum(-1) / (-2 * pairs)
    fourths = m2.detach().square().sum((-2, -1)) / 2
    spread = ((pairs - 1) * (fourths / pairs - mean * mean)).clamp(min=0.0)
    # The last term stands for the rounding of the difference.
    return (mean.clamp(min=0.0) + (spread + 1e-5 * fourths).sqrt()).sqrt()


def _core_solution(
    m: Tensor, m2: Tensor, w: Tensor, balance: Tensor, scale: Tensor, approximant: str, squarings: int, double: bool
) -> Tensor:
    """J·φ₁(M)·W with the balance undone: (…, m, e)."""
    width = m.size(-1)
    factor, count = scaling(core_norm(m2), reach(approximant, "lowrank", double), squarings, double)
    a, a2 = m * factor, m2 * (factor * factor)
    phi1 = pade_phi1(a, a2) if approximant == "pade" else taylor_phi1(a, a2)
    y = double_phi1(phi1 @ a, phi1 @ (w * factor), count)
    swapped = torch.cat([y[..., width // 2 :, :], -y[..., : width // 2, :]], -2)
    return scale * balance * swapped


def sheared(f: Tensor) -> Tensor:
    """[Q K] with K ← K − Q·diag(x), x_j = ⟨q_j, k_j⟩/⟨q_j, q_j⟩: S does not change, and K loses what is parallel to Q.

    Any symmetric X would do in place of diag(x); x may be constant for the gradient, because S does not depend on it.
    """
    d = f.size(-1) // 2
    q, k = f[..., :d], f[..., d:]
    parallel, length = (q.detach() * k.detach()).sum(-2, True), q.detach().square().sum(-2, True)
    x = torch.where(length > 0, parallel / length, torch.zeros_like(length))
    return torch.cat([q, k - q * x], -1)


def _in_float64(f: Tensor, v: Tensor, scale: Tensor, approximant: str, squarings: int, double: bool) -> Tensor:
    """The same form with float64 inside. NaN where not even that leaves the digits that were asked for."""
    f64, scale64 = sheared(f.to(torch.float64)), scale.to(torch.float64)
    m, w, balance = gram_core(f64, v.to(torch.float64), scale64)
    m2 = m @ m
    y = _core_solution(m, m2, w, balance, scale64, approximant, squarings, double)
    # FLOAT64_AMPLIFICATION, written out: TorchScript stores so large a default as an integer and cannot load it.
    limit = 1e10
    amplification = rounding_amplification(m, m2)[..., None, None]
    if not torch.jit.is_scripting():
        check_amplification(amplification, limit)
    sound = torch.where(amplification <= limit, 0.0, float("nan"))
    return (f64 @ (y + sound)).to(f.dtype)


@torch.jit.unused
def _branch_in_graph(
    in_doubt: Tensor,
    f: Tensor,
    v: Tensor,
    scale: Tensor,
    core: tuple[Tensor, Tensor, Tensor, Tensor],
    approximant: str,
    squarings: int,
) -> Tensor:
    # Both branches take all operands: torch.cond wants one signature.
    def single(f: Tensor, v: Tensor, scale: Tensor, m: Tensor, m2: Tensor, w: Tensor, balance: Tensor) -> Tensor:  # noqa: ARG001
        return f @ _core_solution(m, m2, w, balance, scale, approximant, squarings, False)

    def double(f: Tensor, v: Tensor, scale: Tensor, m: Tensor, m2: Tensor, w: Tensor, balance: Tensor) -> Tensor:  # noqa: ARG001
        return _in_float64(f, v, scale, approximant, squarings, False)

    result: Tensor = torch.cond(in_doubt, double, single, (f, v, scale, *core))
    return result
