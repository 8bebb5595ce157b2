"""The folded layer, for N ≫ D: OSA(X)·W_O = X·T with T (D×D) from the Gram matrix C = XᵀX of the layer's input alone.

Queries, keys and values are linear in X, so everything of length N is X itself. With W_F,h = [W_Q,h; W_K,h]:

    G_h = W_F,h·C·W_F,hᵀ,   W_h = W_F,h·C·W_V,hᵀ,   T = Σ_h (W_V,hᵀ + W_F,hᵀ·J·φ₁(G_h·J)·W_h)·W_O,hᵀ

X is centred first, X = X₀ + 1·μᵀ, and what the mean adds to G is brought down by a symplectic scaling, which leaves S
as it is (``README.md``): tokens that are dominated by their mean, as after a one-sided activation, then cost no digits.
Where others would be lost, there is no folded map, and the layer takes queries, keys and values.

Dimensions: b entries, n tokens, D features, h heads of width d, m = 2d.
"""

from __future__ import annotations

import math
from typing import Optional  # TorchScript reads these annotations and does not support X | Y

import torch
from torch import Tensor

from osa_runtime.exponential import ExponentialMethod
from osa_runtime.ops.chebyshev import near_solution, stepped_solution
from osa_runtime.ops.coefficients import (
    FLOAT32_AMPLIFICATION,
    FOLDED_MARGIN,
    LARGEST_MEAN_SCALING,
    LEAST_SQUARE,
    MEAN_SAMPLE,
    SMALL_CORE,
    TINY_SQUARE,
)
from osa_runtime.ops.lowrank import balance, core_norm, precision_level
from osa_runtime.ops.recomputation import gram_of, recomputed
from osa_runtime.ops.rounding import spectral_estimate
from osa_runtime.ops.values import trip_count


def is_foldable(how: ExponentialMethod) -> bool:
    """True for the method whose core the folded layer has, the low-rank one in steps; it chooses nothing else."""
    return how.form != "dense" and how.approximant != "pade" and not how.is_fixed


def folding_pays(tokens: int, dim: int, width: int) -> bool:
    """True if T and X·T take fewer multiply-adds than queries, keys, values and their way through the core."""
    return tokens >= fewest_tokens(dim, width)


def fewest_tokens(dim: int, width: int, margin: float = FOLDED_MARGIN) -> int:
    """The N from which on the layer folds: 2ND² + 3D³ + 8D²d against 4ND² + 7NDd.

    In exported graphs a linear layer behind it may have taken the place of W_O, with another width than D.
    """
    return math.ceil(margin * dim * (3 * dim + 8 * width) / (2 * dim + 7 * width))


def folded_attention(
    x: Tensor, weight: Tensor, out_weight: Tensor, scale: Tensor, mask: Optional[Tensor] = None
) -> Optional[Tensor]:
    """The layer's output (b, n, D) for x (b, n, D), or None where its digits would be lost.

    ``weight`` is packed, [W_Q; W_K; W_V] head by head; ``scale`` has a value for each head; ``mask`` is (b, n).
    """
    packed = packed_by_head(weight, scale.size(0))
    x0, mean, rest, count = centred(x, mask)
    if torch.jit.is_scripting():
        gram = x0.mT @ x0
        if gram.dtype != x0.dtype:  # autocast rounds products; a script cannot ask for it, as eager does
            return None
        found = _map_of_gram(gram, mean, rest, count, packed, scale, out_weight)
    else:
        found = recomputed(_map_of_gram, gram_of(x0), mean, rest, count, packed, scale, out_weight)
    if found is None:
        return None
    return mapped(x, x0, found[0], found[1], weight, out_weight, scale.size(0), mask)


def _map_of_gram(
    gram: Tensor, mean: Tensor, rest: Tensor, count: Tensor, packed: Tensor, scale: Tensor, out_weight: Tensor
) -> Optional[tuple[Tensor, Tensor]]:
    """T and the mean's row, from all that is small; None where the digits would be lost."""
    level, (m, m2, norm, w), f, from_mean = judged_folded_core(gram, mean, rest, count, packed, scale)
    chosen = trip_count(level)
    if chosen > 1:
        return None
    one, c = torch.ones_like(w[:, :1, :1]), of_each_head(scale, gram)
    if chosen == 1:
        for_q, for_k = stepped_solution(m, m2, norm, w, one, c)
    else:
        for_q, for_k = near_solution(m, m2, w, one, c)
    return folded_map(torch.cat([for_q, for_k], -2), f, from_mean, mean, packed, out_weight)


def mapped(
    x: Tensor,
    x0: Tensor,
    folded: Tensor,
    row: Tensor,
    weight: Tensor,
    out_weight: Tensor,
    heads: int,
    mask: Optional[Tensor] = None,
) -> Tensor:
    """X₀·T and the mean's row. exp(S) is the identity on a padded token: its value goes through W_O as it is."""
    out = torch.baddbmm(row, x0, folded)
    if mask is None:
        return out
    values = weight.unflatten(0, (heads, 3, -1))[:, 2].flatten(0, 1)
    return torch.where(mask[..., None], out, x @ (out_weight @ values).mT)


def judged_folded_core(
    gram: Tensor, mean: Tensor, rest: Tensor, count: Tensor, packed: Tensor, scale: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor], Tensor, tuple[Tensor, Tensor]]:
    """The level of ``precision_level``; M, M², the norm and W; f; and what leads back from F̃ to F."""
    m, w, f, from_mean, beta = folded_core(gram, mean, rest, count, packed, scale)
    m2 = m @ m
    norm = core_norm(m2)
    return precision_level(norm, is_in_folded_doubt(m, w, norm, beta)), (m, m2, norm, w), f, from_mean


def centred(x: Tensor, mask: Optional[Tensor] = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """X₀ = X − 1·μᵀ with padded rows at zero, μ (b, 1, D), the sum of X₀'s rows (b, 1, D), and their number (b, 1, 1).

    Nothing depends on μ in exact arithmetic, so it may be rough, and constant for the gradient.
    """
    real = torch.ones_like(x[..., :1], dtype=torch.bool) if mask is None else mask[..., None]
    count = real.sum(1, True).to(x.dtype)
    known = x.detach() if mask is None else x.detach().masked_fill(~real, 0.0)
    mean = rough_mean(known, real, count)
    x0 = without_mean(x, mean, mask)
    return x0, mean, x0.sum(1, True), count


def without_mean(x: Tensor, mean: Tensor, mask: Optional[Tensor] = None) -> Tensor:
    x0 = x - mean
    return x0 if mask is None else x0.masked_fill(~mask[..., None], 0.0)


def rough_mean(x: Tensor, real: Tensor, count: Tensor, sample: int = MEAN_SAMPLE) -> Tensor:
    """The mean of the real tokens, rounded to about half of what a sample of them is apart.

    That is all that is needed, and features of few values (±1, pixels) keep few digits: with many, equal products are
    rounded alike, and their errors add up in C.
    """
    mean = x.sum(1, True) / count.clamp(min=1.0)
    places = torch.arange(sample, device=x.device) * x.size(1) // sample
    sampled = real[:, places]
    apart = (x[:, places] - mean).square().mean(-1, True) * sampled
    deviation = (apart.sum(1, True) / sampled.sum(1, True).clamp(min=1)).sqrt()
    grid = torch.exp2(torch.floor(torch.log2(deviation)) - 1.0)
    return torch.where(deviation > 0, torch.round(mean / grid) * grid, mean)


def packed_by_head(weight: Tensor, heads: int) -> Tensor:
    """The columns [t·W_Q, W_K/t, W_V] of each head, (h, D, 3d); t is a power of two that makes the first two of a size.

    The weights alone decide it, so that it costs nothing; where the tokens are out of balance, they are in doubt.
    """
    packed = weight.reshape(heads, -1, weight.size(-1)).mT
    queries, keys, values = packed.chunk(3, -1)
    t = balance(queries.detach().square().sum((-2, -1), True), keys.detach().square().sum((-2, -1), True))
    return torch.cat([queries * t, keys / t, values], -1)


def folded_core(
    gram: Tensor,
    mean: Tensor,
    rest: Tensor,
    count: Tensor,
    packed: Tensor,
    scale: Tensor,
    tiny: float = TINY_SQUARE,
    least: float = LEAST_SQUARE,
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor], Tensor]:
    """M = GJ and W of the scaled F̃ = F·R, its mean f, what leads back from F̃ to F, and β: one batch axis b·h.

    R = I + Z·Λ·Zᵀ shrinks the direction f̂ of the mean by 1/τ and stretches its conjugate Jf̂ by τ; R·J·R = J, so that S
    is the same. τ makes both of one size. With J and c in the second factor W_F·J, G itself is never formed.
    """
    entries, m = gram.size(0), 2 * _width(packed)
    c = of_each_head(scale, gram)
    n = _for_each_head(count, packed)
    products = _products_of_heads(gram, mean, rest, packed)
    core, w = c * products[:, :m, :m], products[:, :m, m:]
    f, f_values = -_turned(products[:, m : m + 1, :m]), products[:, m : m + 1, m:]
    s, s_values = -_turned(products[:, m + 1 :, :m]), products[:, m + 1 :, m:]
    z, stretch, tau = _mean_scaling(core.detach(), f.detach(), n, c.detach(), tiny)
    z_rows, z_stretched = z.mT, z * stretch
    # f lies along f̂, and Z·Λ·Zᵀ·f is known without rounding; the first row has the value 0 and the gradient.
    fixed = f.detach()
    rows = torch.cat([f - fixed, s], -2)
    rows = torch.baddbmm(rows, rows @ z, z_stretched.mT)
    f, s = fixed / tau + rows[:, :1], rows[:, 1:]
    gz = core @ _turned(z_rows).mT  # times c
    low = gz * stretch + 0.5 * z_stretched @ ((z_rows @ gz) * stretch)
    left, right = torch.cat([z_rows, f], -2), torch.cat([low.mT, c * (s + 0.5 * n * f)], -2)
    core = torch.baddbmm(core, torch.cat([left, right], -2).mT, _turned(torch.cat([right, left], -2)))
    sums = torch.cat([z_rows @ w, s_values + n * f_values, f_values], -2)
    w = torch.baddbmm(w, torch.cat([z_stretched, f.mT, s.mT], -1), sums)
    size = spectral_estimate(gram)[:, None].clamp(min=least)
    offset = torch.linalg.vector_norm(mean.detach(), dim=-1) * (count[:, 0] * size).sqrt()
    reach = size * tau.reshape(entries, -1).square() + offset
    return core, w, f, (z, stretch), (_lengths(packed).square() * scale.detach().abs() * reach).flatten()


def _products_of_heads(gram: Tensor, mean: Tensor, rest: Tensor, packed: Tensor) -> Tensor:
    """[W_F·C; μ; sum of rows]·[W_Fᵀ·J/c, W_Vᵀ] for each head."""
    m = 2 * _width(packed)
    first = packed[..., :m].mT.flatten(0, 1).expand(gram.size(0), -1, -1) @ gram
    rows = _for_each_head(torch.cat([mean, rest], -2), packed)
    second = torch.cat([_turned(packed[..., :m]), packed[..., m:]], -1)
    return torch.cat([first.reshape(-1, m, first.size(-1)), rows], -2) @ _for_each_entry(second, gram)


def _lengths(packed: Tensor) -> Tensor:
    """The larger of ‖W_Q‖ and ‖W_K‖ of each head."""
    d = _width(packed)
    both = torch.stack([packed[..., :d], packed[..., d : 2 * d]])
    return spectral_estimate(both).amax(0)


def _for_each_head(x: Tensor, packed: Tensor) -> Tensor:
    """(b, …) → (b·h, …)."""
    return x.repeat_interleave(packed.size(0), 0)


def _for_each_entry(x: Tensor, gram: Tensor) -> Tensor:
    """(h, …) → (b·h, …)."""
    return x.expand(gram.size(0), -1, -1, -1).flatten(0, 1)


def _turned(rows: Tensor) -> Tensor:
    """Rows times J/c: [a b] becomes [−b a]."""
    upper, lower = rows.chunk(2, -1)
    return torch.cat([-lower, upper], -1)


def _mean_scaling(
    m: Tensor, f: Tensor, count: Tensor, c: Tensor, tiny: float, most: float = LARGEST_MEAN_SCALING
) -> tuple[Tensor, Tensor, Tensor]:
    """Z = [f̂, Jf̂] (b·h, m, 2), Λ = [1/τ − 1, τ − 1] (b·h, 1, 2) and τ (b·h, 1, 1).

    τ⁴ = N·|f|²/⟨Jf̂, G·Jf̂⟩, the ratio of the two lengths squared; both are taken times c, as M has it.
    """
    square = f.square().sum(-1, True)
    along = f / square.sqrt().clamp(min=tiny)
    across = -_turned(along)
    spread = (across @ (m @ along.mT)).abs()
    ratio = torch.log2((count * square * c.abs()).clamp(min=tiny)) - torch.log2(spread.clamp(min=tiny))
    tau = torch.exp2((ratio / 4).clamp(min=0.0, max=most))
    return torch.cat([along, across], -2).mT, torch.cat([1 / tau - 1, tau - 1], -1), tau


def is_in_folded_doubt(
    m: Tensor,
    w: Tensor,
    norm: Tensor,
    beta: Tensor,
    limit: float = FLOAT32_AMPLIFICATION,
    small: float = SMALL_CORE,
    tiny: float = TINY_SQUARE,
) -> Tensor:
    """True for heads that exceed the digits or the range of float32, NaN included.

    As ``rounding.is_in_doubt``, but C and the mean are rounded before the weights narrow them: β = |c|·‖W_F‖²·(τ²‖C‖ +
    √(N‖C‖)·|μ|) replaces one ‖M‖, and matters where M is small, too.
    """
    size, w_size = spectral_estimate(m), w.detach().square().sum((-2, -1))
    amplification = torch.maximum(size.pow(3), beta * size.square().clamp(min=small)) / norm.clamp(min=1.0)
    return ~((amplification <= limit) & torch.isfinite(w_size) & ((w_size >= tiny) | (size == 0)))


def folded_map(
    y: Tensor, f: Tensor, from_mean: tuple[Tensor, Tensor], mean: Tensor, packed: Tensor, out_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """T (b, D, D), and the row (b, 1, D) that the mean token becomes, from Y = J·φ₁(M)·W of each head."""
    d = _width(packed)
    z, stretch = from_mean
    row = f @ y
    y = torch.baddbmm(y, z * stretch, z.mT @ y)
    folded = _for_each_entry(packed[..., : 2 * d], mean) @ y
    values, heads = _merged(packed[..., 2 * d :], packed.size(0)), packed.size(0)
    return (values + _merged(folded, heads)) @ out_weight.mT, (mean @ values + _merged(row, heads)) @ out_weight.mT


def _merged(x: Tensor, heads: int) -> Tensor:
    """(b·h, n, d) → (b, n, h·d)."""
    return x.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)


def of_each_head(scale: Tensor, gram: Tensor) -> Tensor:
    """c for each matrix of the batch b·h."""
    return scale.expand(gram.size(0), -1).reshape(-1, 1, 1)


def _width(packed: Tensor) -> int:
    return packed.size(-1) // 3
