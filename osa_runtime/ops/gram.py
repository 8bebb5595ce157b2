"""The low-rank form, for N > 2d: everything of size N enters through the Gram matrix of F = [Q K].

    exp(S)V = V + F·J·φ₁(GJ)·(FᵀV),   G = FᵀF,   J = c·[[0, I], [−I, 0]],   S = F J Fᵀ

M = GJ has the eigenvalues of S but is not normal. The remedies, derived in ``README.md``: Q and K are balanced on the
core; where rounding would cost digits of float32, the form is redone in float64; and where it would cost them there,
too, the dense form takes over while it is affordable.

Dimensions: n tokens, d per head, m = 2d, e the width of V.
"""

from __future__ import annotations

import torch
from torch import Tensor

from osa_runtime.ops.coefficients import FLOAT32_AMPLIFICATION, MOST_DENSE_ENTRIES, MOST_DENSE_TOKENS
from osa_runtime.ops.dense import dense_attention
from osa_runtime.ops.graph_control import branch
from osa_runtime.ops.pade import pade_phi1
from osa_runtime.ops.rounding import check_digits, is_lost_in_gram, needs_float64
from osa_runtime.ops.scaling import double_phi1, reach, scaling
from osa_runtime.ops.taylor import taylor_phi1
from osa_runtime.ops.values import any_of


def lowrank_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    approximant: str,
    squarings: int,
    double: bool,
    or_dense: bool,
    limit: float = FLOAT32_AMPLIFICATION,
) -> Tensor:
    """(e^S − I)V. ``double`` says that the result is float64; ``squarings`` < 0 means as many as needed.

    ``or_dense`` lets the dense form take over where this one has lost its digits.
    """
    f_nm = torch.cat([q, k], -1)
    if double:
        return _in_float64(f_nm, v, scale, approximant, squarings, True, or_dense)
    m_mm, w_me, balance = gram_core(f_nm, v, scale)
    m2_mm = m_mm @ m_mm
    in_doubt = needs_float64(m_mm, w_me, core_norm(m2_mm), limit)
    if not torch.jit.is_scripting():  # noqa: SIM102  # TorchScript skips the body only when this stands alone
        if torch.compiler.is_exporting():
            core = (m_mm, m2_mm, w_me, balance)
            return _float64_in_graph(in_doubt, f_nm, v, scale, core, approximant, squarings, or_dense)
    # Under torch.compile this is a graph break: its own branches fail to capture with dynamic sizes (torch 2.13).
    if any_of(in_doubt):
        return _in_float64(f_nm, v, scale, approximant, squarings, False, or_dense)
    return f_nm @ _core_solution(m_mm, m2_mm, w_me, balance, scale, approximant, squarings, False)


def gram_core(f_nm: Tensor, v_ne: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """M = GJ and W = FᵀV for the balanced F, and the balance (…, m, 1) that undoes it.

    Q ← tQ and K ← K/t leave S as it is; t is a power of two, so that they cost no rounding.
    """
    d = f_nm.size(-1) // 2
    g, w = f_nm.transpose(-1, -2) @ f_nm, f_nm.transpose(-1, -2) @ v_ne
    squares = g.detach().diagonal(dim1=-2, dim2=-1)
    q_squares, k_squares = squares[..., :d], squares[..., d:]
    # The logarithms apart: the ratio of the squares may be beyond float32 where S is not.
    t = torch.exp2(torch.round((torch.log2(k_squares.sum(-1, True)) - torch.log2(q_squares.sum(-1, True))) / 4))
    t = torch.where((t > 0) & torch.isfinite(t), t, torch.ones_like(t)).expand_as(q_squares)
    balance = torch.cat([t, 1 / t], -1)[..., None]
    g = balance * g * balance.mT
    return scale * torch.cat([-g[..., d:], g[..., :d]], -1), balance * w, balance


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


def _in_float64(
    f: Tensor, v: Tensor, scale: Tensor, approximant: str, squarings: int, double: bool, or_dense: bool
) -> Tensor:
    """The same form with float64 inside, or the dense form where not even that leaves the digits of the result."""
    f64, c = sheared(f.to(torch.float64)), scale.to(torch.float64)
    m, w, balance = gram_core(f64, v.to(torch.float64), c)
    m2 = m @ m
    lost = is_lost_in_gram(f, scale, m, core_norm(m2), double)
    if not torch.jit.is_scripting():  # noqa: SIM102  # TorchScript skips the body only when this stands alone
        if torch.compiler.is_exporting():
            core = (m, m2, w, balance)
            return _dense_in_graph(lost, f, v, scale, f64, core, approximant, squarings, double, or_dense)
    if or_dense and _is_affordable(f) and any_of(lost):
        return _in_dense_form(f, v, scale, approximant, squarings, double)
    y = _core_solution(m, m2, w, balance, c, approximant, squarings, double)
    if not torch.jit.is_scripting():
        check_digits(lost)
    return (f64 @ y.masked_fill(lost[..., None, None], float("nan"))).to(v.dtype)


def _in_dense_form(f: Tensor, v: Tensor, scale: Tensor, approximant: str, squarings: int, double: bool) -> Tensor:
    d = f.size(-1) // 2
    return dense_attention(f[..., :d], f[..., d:], v, scale, approximant, squarings, double)


def _is_affordable(f: Tensor, tokens: int = MOST_DENSE_TOKENS, entries: int = MOST_DENSE_ENTRIES) -> bool:
    """Whether S, N×N for each entry, may be formed: the rest of the batch must not pay too much for one entry."""
    return f.size(-2) <= tokens and f.numel() // f.size(-1) * f.size(-2) <= entries


# The branches as parts of a graph. torch.cond wants one signature for both branches, and no operands that share memory,
# which queries, keys and values often do: so it is given F.


@torch.jit.unused
def _float64_in_graph(
    in_doubt: Tensor,
    f: Tensor,
    v: Tensor,
    scale: Tensor,
    core: tuple[Tensor, Tensor, Tensor, Tensor],
    approximant: str,
    squarings: int,
    or_dense: bool,
) -> Tensor:
    def single(f: Tensor, v: Tensor, scale: Tensor, m: Tensor, m2: Tensor, w: Tensor, balance: Tensor) -> Tensor:  # noqa: ARG001
        return f @ _core_solution(m, m2, w, balance, scale, approximant, squarings, False)

    def double(f: Tensor, v: Tensor, scale: Tensor, *core: Tensor) -> Tensor:  # noqa: ARG001
        return _in_float64(f, v, scale, approximant, squarings, False, or_dense)

    return branch(in_doubt, double, single, (f, v, scale, *core))


@torch.jit.unused
def _dense_in_graph(
    lost: Tensor,
    f: Tensor,
    v: Tensor,
    scale: Tensor,
    f64: Tensor,
    core: tuple[Tensor, Tensor, Tensor, Tensor],
    approximant: str,
    squarings: int,
    double: bool,
    or_dense: bool,
) -> Tensor:
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    def lowrank(lost: Tensor, f: Tensor, v: Tensor, scale: Tensor, f64: Tensor, *core: Tensor) -> Tensor:  # noqa: ARG001
        m, m2, w, balance = core
        y = _core_solution(m, m2, w, balance, scale.to(torch.float64), approximant, squarings, double)
        return (f64 @ y.masked_fill(lost[..., None, None], float("nan"))).to(v.dtype)

    def dense(lost: Tensor, f: Tensor, v: Tensor, scale: Tensor, *rest: Tensor) -> Tensor:  # noqa: ARG001
        return _in_dense_form(f, v, scale, approximant, squarings, double)

    operands = (lost, f, v, scale, f64, *core)
    tokens = f.size(-2)
    if not or_dense or statically_known_true(tokens > MOST_DENSE_TOKENS):
        return lowrank(*operands)
    fits = torch.full([], tokens, device=f.device) <= MOST_DENSE_TOKENS
    fits = fits & (torch.full([], f.numel() // f.size(-1) * tokens, device=f.device) <= MOST_DENSE_ENTRIES)
    return branch(lost.any() & fits, dense, lowrank, operands)
