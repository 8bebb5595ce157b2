"""The low-rank form, for N > 2d: everything of size N enters through the Gram matrix of F = [Q K].

    exp(S)V = V + F·J·φ₁(GJ)·(FᵀV),   G = FᵀF,   J = c·[[0, I], [−I, 0]],   S = F J Fᵀ

F itself is never formed: M = GJ and W = FᵀV are put together from blocks. M has the eigenvalues of S but is not normal.
The remedies, derived in ``README.md``: Q and K are balanced on the core; where rounding would cost digits of float32,
the form is redone in float64; and where it would cost them there, too, the dense form takes over if it is affordable.

Dimensions: one batch axis b, n tokens, d per head, m = 2d, e the width of V; c is (b, 1, 1).
"""

from __future__ import annotations

from typing import Optional  # TorchScript reads these annotations and does not support X | Y

import torch
from torch import Tensor

from osa_runtime.ops.approximants import scaled_phi1_minus1
from osa_runtime.ops.chebyshev import near_solution, stepped_solution
from osa_runtime.ops.coefficients import (
    FARTHEST,
    FOUR_LN2,
    FOURTHS_MARGIN,
    MOST_DENSE_ENTRIES,
    MOST_DENSE_TOKENS,
    NEAR_REACH,
)
from osa_runtime.ops.dense import dense_change
from osa_runtime.ops.graph_control import branch
from osa_runtime.ops.recomputation import recomputed
from osa_runtime.ops.rounding import check_digits, is_in_doubt, is_lost_in_gram, is_lost_in_terms
from osa_runtime.ops.scaling import doubled_phi1, reach, scaling
from osa_runtime.ops.values import any_of, trip_count, whole

Products = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def lowrank_change(
    q: Tensor, k: Tensor, v: Tensor, c: Tensor, approximant: str, squarings: int, double: bool, or_dense: bool
) -> Tensor:
    """(e^S − I)·V. With ``double`` the result is float64; ``squarings`` < 0 means as many as needed.

    In float64 where float32 would lose digits or take many steps. ``or_dense`` lets the dense form take over where this
    one has lost its digits.
    """
    if double:
        return precise_change(q, k, v, c, approximant, squarings, True, or_dense)
    if not torch.jit.is_scripting():  # noqa: SIM102  # TorchScript skips the body only when this stands alone
        if squarings >= 0 and torch.compiler.is_exporting():
            # A fixed number of squarings promises a program without branches, which cannot choose the precision.
            return precise_change(q, k, v, c, approximant, squarings, False, False)
    products = gram_products(q, k, v)
    if not torch.jit.is_scripting():
        if torch.compiler.is_exporting():
            level, core = _judged_core(products, c, approximant, squarings)
            return _change_in_graph(level, q, k, v, c, core, approximant, squarings, or_dense)
        # torch.compile does not come here (``opaque.py``): with dynamic sizes its branches fail to capture (2.13).
        solution = recomputed(_solution, products, c, approximant, squarings)
    else:
        solution = _solution(products, c, approximant, squarings)
    if solution is None:
        return precise_change(q, k, v, c, approximant, squarings, False, or_dense)
    return applied(q, k, solution[0], solution[1])


def _judged_core(
    products: Products, c: Tensor, approximant: str, squarings: int
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """The level of ``precision_level``, and M, M², the norm, W and t."""
    m, w, t = balanced_core(products, c)
    m2 = m @ m
    norm = core_norm(m2)
    in_doubt = is_in_doubt(m, w, norm)
    steps = approximant != "pade" and squarings < 0
    level = precision_level(norm, in_doubt) if steps else 2 * in_doubt.any().to(torch.int64)
    return level, (m, m2, norm, w, t)


def _solution(products: Products, c: Tensor, approximant: str, squarings: int) -> Optional[tuple[Tensor, Tensor]]:
    """J·φ₁(M)·W in float32 with the balance undone, the factors of Q and of K; None where it would lose digits."""
    level, (m, m2, norm, w, t) = _judged_core(products, c, approximant, squarings)
    chosen = trip_count(level)
    if chosen > 1:
        return None
    if approximant == "pade" or squarings >= 0:
        return gram_solution(m, m2, norm, w, t, c, approximant, squarings, False)
    if chosen == 1:
        return stepped_solution(m, m2, norm, w, t, c)
    return near_solution(m, m2, w, t, c)


def precision_level(norm: Tensor, in_doubt: Tensor, near: float = NEAR_REACH, farthest: float = FARTHEST) -> Tensor:
    """0 where all entries take the short polynomial, 1 where one needs steps, 2 where one needs float64.

    The comparisons treat a norm of NaN as far: float64 makes only its entry NaN.
    """
    if not torch.jit.is_scripting():
        norm, in_doubt = whole(norm), whole(in_doubt)
    far = in_doubt | ~(norm <= farthest)
    return torch.maximum(2 * far.to(torch.int64), (~(norm <= near)).to(torch.int64)).amax()


def gram_core(q: Tensor, k: Tensor, v: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """M = GJ and W = FᵀV for the balanced F = [tQ, K/t], and t (…, 1, 1), a power of two.

    M = c·[[−QᵀK, t²·QᵀQ], [−KᵀK/t², KᵀQ]]. The balance leaves S as it is and costs no rounding.
    """
    return balanced_core(gram_products(q, k, v), c)


def gram_products(q: Tensor, k: Tensor, v: Tensor) -> Products:
    """The blocks QᵀQ, QᵀK, KᵀK of G and QᵀV, KᵀV of FᵀV: everything of length N ends here."""
    return q.mT @ q, q.mT @ k, k.mT @ k, q.mT @ v, k.mT @ v


def balanced_core(products: Products, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``gram_core`` from the products."""
    qq, qk, kk, qv, kv = products
    t = balance(_mean_of_diagonal(qq.detach()), _mean_of_diagonal(kk.detach()))[..., None, None]
    upper = torch.cat([-c * qk, (c * t * t) * qq], -1)
    lower = torch.cat([-c / (t * t) * kk, c * qk.mT], -1)
    w = torch.cat([t * qv, kv / t], -2)
    return torch.cat([upper, lower], -2), w, t


def balance(q_square: Tensor, k_square: Tensor, four_ln2: float = FOUR_LN2) -> Tensor:
    """The power of two t with which tQ and K/t are of a size, from the squares of their sizes; 1 where one is zero."""
    usable = (q_square > 0) & (k_square > 0)
    # Separate logarithms: the ratio may be beyond float32 where S is not.
    ratio = torch.where(usable, torch.log(k_square) - torch.log(q_square), torch.zeros_like(q_square))
    return torch.exp2(torch.floor(ratio / four_ln2 + 0.5))


def core_norm(m2: Tensor, margin: float = FOURTHS_MARGIN) -> Tensor:
    """An upper bound of ‖S‖₂ for each entry, from M².

    M² has the squares −σ² of the d pairs of eigenvalues ±iσ of S, so its trace and tr M⁴ are their mean and their mean
    square; no value is farther from the mean than √(d − 1) standard deviations. ‖S‖₂ alone decides the truncation
    error, although M is not normal: F·J·p(GJ)·Fᵀ = S·p(S) for every polynomial p.

    With the blocks [[A, B], [C, Aᵀ]] of M², where B and C are skew, tr M⁴ = 2·Σ(A∘D − B∘C), D being the computed Aᵀ.
    """
    m2 = m2.detach()
    pairs = m2.size(-1) // 2
    upper, lower = m2[..., :pairs, :], m2[..., pairs:, :]
    mean = (-_mean_of_diagonal(upper[..., :pairs])).clamp(min=0.0)
    products = upper[..., :pairs] * lower[..., pairs:] - upper[..., pairs:] * lower[..., :pairs]
    fourth = (products.sum((-2, -1)) / pairs).clamp(min=0.0)
    variance = (fourth - mean * mean).clamp(min=0.0)
    return (mean + ((pairs - 1) * variance + margin * fourth).sqrt()).sqrt()


def _mean_of_diagonal(x: Tensor) -> Tensor:
    return x.diagonal(dim1=-2, dim2=-1).mean(-1)


def gram_solution(
    m: Tensor,
    m2: Tensor,
    norm: Tensor,
    w: Tensor,
    t: Tensor,
    c: Tensor,
    approximant: str,
    squarings: int,
    double: bool,
) -> tuple[Tensor, Tensor]:
    """J·φ₁(M)·W with the balance undone, by scaling and squaring: the factors of Q and of K."""
    factor, count = scaling(norm, reach(approximant, "lowrank", double), squarings, double, least=1)
    phi = scaled_phi1_minus1(m, m2, factor, approximant)
    a, y = m * factor, w * factor
    y = y + phi @ y
    if squarings != 0:
        y = doubled_phi1(a + phi @ a, y, count, squarings)
    upper, lower = y.chunk(2, -2)
    return (c * t) * lower, (-c / t) * upper


def sheared(q: Tensor, k: Tensor) -> Tensor:
    """K − Q·diag(x), x_j = ⟨q_j, k_j⟩/⟨q_j, q_j⟩: S does not change, and K loses what is parallel to Q.

    Any symmetric X would do in place of diag(x); x may be constant for the gradient, because S does not depend on it.
    """
    parallel, length = (q.detach() * k.detach()).sum(-2, True), q.detach().square().sum(-2, True)
    return k - q * torch.where(length > 0, parallel / length, torch.zeros_like(length))


def precise_change(
    q: Tensor, k: Tensor, v: Tensor, c: Tensor, approximant: str, squarings: int, double: bool, or_dense: bool
) -> Tensor:
    """(e^S − I)·V computed in float64 with K sheared, or through S itself where that loses the digits of the result."""
    q64, c64 = q.to(torch.float64), c.to(torch.float64)
    k64 = sheared(q64, k.to(torch.float64))
    m, w, t = gram_core(q64, k64, v.to(torch.float64), c64)
    m2 = m @ m
    norm = core_norm(m2)
    lost = is_lost_in_gram(m, norm, double) | is_lost_in_terms(q, k, c, norm, double)
    if not torch.jit.is_scripting():  # noqa: SIM102  # TorchScript skips the body only when this stands alone
        if torch.compiler.is_exporting():
            core = (q64, k64, m, m2, norm, w, t)
            return _precise_in_graph(lost, q, k, v, c, core, approximant, squarings, double, or_dense)
    if or_dense and _is_affordable(q) and any_of(lost):
        return dense_change(q, k, v, c, approximant, squarings, double)
    if not torch.jit.is_scripting():
        for_q, for_k = recomputed(gram_solution, m, m2, norm, w, t, c64, approximant, squarings, double)
        check_digits(lost)
    else:
        for_q, for_k = gram_solution(m, m2, norm, w, t, c64, approximant, squarings, double)
    return _float64_change(q64, k64, for_q, for_k, lost).to(v.dtype)


def _float64_change(q: Tensor, k: Tensor, for_q: Tensor, for_k: Tensor, lost: Tensor) -> Tensor:
    return applied(q, k, for_q.masked_fill(lost[..., None, None], float("nan")), for_k)


def applied(q: Tensor, k: Tensor, for_q: Tensor, for_k: Tensor) -> Tensor:
    return torch.baddbmm(q @ for_q, k, for_k)


def _is_affordable(q: Tensor, tokens: int = MOST_DENSE_TOKENS, entries: int = MOST_DENSE_ENTRIES) -> bool:
    """True if S, N×N for each entry, may be formed: the rest of the batch must not pay too much for one entry."""
    return q.size(-2) <= tokens and q.size(0) * q.size(-2) * q.size(-2) <= entries


# The branches as parts of a graph. torch.cond wants one signature for both branches, and no operands that share memory,
# which queries, keys and values often do: so it is given F = [Q K].


@torch.jit.unused
def _change_in_graph(
    level: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    c: Tensor,
    core: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    approximant: str,
    squarings: int,
    or_dense: bool,
) -> Tensor:
    def single(level: Tensor, f: Tensor, v: Tensor, c: Tensor, *core: Tensor) -> Tensor:  # noqa: ARG001
        m, m2, norm, w, t = core
        if approximant == "pade":
            q, k = f.chunk(2, -1)
            return applied(q, k, *gram_solution(m, m2, norm, w, t, c, approximant, squarings, False))
        return branch(level > 0, _stepped_branch, _near_branch, (f, m, m2, norm, w, t, c))

    def double(level: Tensor, f: Tensor, v: Tensor, c: Tensor, *core: Tensor) -> Tensor:  # noqa: ARG001
        q, k = f.chunk(2, -1)
        return precise_change(q, k, v, c, approximant, squarings, False, or_dense)

    return branch(level > 1, double, single, (level, torch.cat([q, k], -1), v, c, *core))


def _stepped_branch(f: Tensor, m: Tensor, m2: Tensor, norm: Tensor, w: Tensor, t: Tensor, c: Tensor) -> Tensor:
    q, k = f.chunk(2, -1)
    return applied(q, k, *stepped_solution(m, m2, norm, w, t, c))


def _near_branch(f: Tensor, m: Tensor, m2: Tensor, norm: Tensor, w: Tensor, t: Tensor, c: Tensor) -> Tensor:  # noqa: ARG001
    q, k = f.chunk(2, -1)
    return applied(q, k, *near_solution(m, m2, w, t, c))


@torch.jit.unused
def _precise_in_graph(
    lost: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    c: Tensor,
    core: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
    approximant: str,
    squarings: int,
    double: bool,
    or_dense: bool,
) -> Tensor:
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    def lowrank(lost: Tensor, f: Tensor, v: Tensor, c: Tensor, *core: Tensor) -> Tensor:  # noqa: ARG001
        q64, k64, m, m2, norm, w, t = core
        for_q, for_k = gram_solution(m, m2, norm, w, t, c.to(torch.float64), approximant, squarings, double)
        return _float64_change(q64, k64, for_q, for_k, lost).to(v.dtype)

    def dense(lost: Tensor, f: Tensor, v: Tensor, c: Tensor, *core: Tensor) -> Tensor:  # noqa: ARG001
        q, k = f.chunk(2, -1)
        return dense_change(q, k, v, c, approximant, squarings, double)

    operands = (lost, torch.cat([q, k], -1), v, c, *core)
    tokens = q.size(-2)
    if not or_dense or squarings >= 0 or statically_known_true(tokens > MOST_DENSE_TOKENS):
        return lowrank(*operands)
    fits = torch.full([], tokens, device=q.device) <= MOST_DENSE_TOKENS
    fits = fits & (torch.full([], q.size(0) * tokens * tokens, device=q.device) <= MOST_DENSE_ENTRIES)
    return branch(lost.any() & fits, dense, lowrank, operands)
