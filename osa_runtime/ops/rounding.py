"""The cost of rounding: how much each form amplifies it, and up to where the result has its digits.

``README.md`` has the laws and how they were measured.
"""

from __future__ import annotations

import torch
from torch import Tensor

from osa_runtime.errors import ExponentRangeError
from osa_runtime.ops.coefficients import FLOAT32_AMPLIFICATION, TINY_SQUARE
from osa_runtime.ops.values import any_of


def spectral_estimate(m: Tensor, tiny: float = TINY_SQUARE) -> Tensor:
    """‖M‖₂ for each entry by three power steps from four fixed vectors: (…), between about 0.6 and 1 of the truth.

    sin(i(i + j)) looks random to features of any structure, unlike the columns of an identity or a vector of ones.
    """
    m = m.detach()
    i = torch.arange(1, m.size(-1) + 1, dtype=m.dtype, device=m.device)[:, None]
    j = torch.arange(4, dtype=m.dtype, device=m.device)
    mx = m @ torch.sin(i * (i + j))
    length = mx.abs().amax((-2, -1), True).clamp(min=tiny)
    y = ((mx / length).mT @ m).mT / length
    squares = (m @ y).square().sum(-2) / y.square().sum(-2).clamp(min=tiny)
    return squares.amax(-1).sqrt()


def gram_amplification(m: Tensor, norm: Tensor) -> Tensor:
    """‖M‖₂³ / max(‖S‖, 1) for each entry: the low-rank form loses about 0.1 eps of its precision for each unit."""
    return spectral_estimate(m).pow(3) / norm.clamp(min=1.0)


def is_in_doubt(
    m: Tensor, w: Tensor, norm: Tensor, limit: float = FLOAT32_AMPLIFICATION, tiny: float = TINY_SQUARE
) -> Tensor:
    """True for entries that exceed the digits or the range of float32, NaN included.

    W may also be too small: where V is tiny and Q or K is, too, their products lose digits below the range. Where M
    vanishes, as in an entry that is all padding, W does not matter.
    """
    amplification, size = gram_amplification(m, norm), w.detach().square().sum((-2, -1))
    return ~((amplification <= limit) & torch.isfinite(size) & ((size >= tiny) | (amplification == 0)))


def is_lost_in_gram(m: Tensor, norm: Tensor, double: bool) -> Tensor:
    """True for entries that have lost, in float64, the digits of a float32 result, or ten digits of a float64 one.

    False for NaN and Inf, which are in the input and stay NaN. Beyond ‖S‖ of 8 every method loses digits in
    proportion to it; beyond 32 the error of degenerate M grows like ‖M‖₂³ alone.
    """
    # A product: TorchScript stores larger whole numbers as integers, and reads no constants of a module.
    limit = 65536.0 * (16.0 if double else 65536.0)  # 2²⁰, and FLOAT64_AMPLIFICATION, 2³²
    amplification = gram_amplification(m, norm)
    return torch.isfinite(amplification) & (amplification > limit * (norm / 8).clamp(1.0, 4.0))


def is_lost_in_terms(q: Tensor, k: Tensor, c: Tensor, norm: Tensor, double: bool) -> Tensor:
    """The same for S = c(QKᵀ − KQᵀ) itself, which has in float64 an error of up to eps·|c|·‖Q‖·‖K‖."""
    q64, k64 = q.detach().to(torch.float64), k.detach().to(torch.float64)
    lengths = torch.linalg.vector_norm(q64, dim=(-2, -1)) * torch.linalg.vector_norm(k64, dim=(-2, -1))
    terms = lengths * c.detach().to(torch.float64).abs()[..., 0, 0]
    # 2²⁰, and LARGEST_TERMS, 2³⁴
    limit = 1048576.0 * norm.clamp(min=1.0) if double else torch.full_like(terms, 65536.0 * 262144.0)
    return torch.isfinite(terms) & (terms > limit)


def check_digits(lost: Tensor) -> None:
    """In eager mode, raise if an entry is lost; a graph, which cannot raise, returns NaN for it."""
    if torch.compiler.is_compiling() or not any_of(lost):
        return
    raise ExponentRangeError(
        "Rounding leaves no digits of S = scale·(QKᵀ − KQᵀ) or of its exponential: the values of q and k are huge, or "
        "k is almost q·X with a symmetric X, as when all tokens are alike. Make q and k smaller or less parallel "
        "(subtract the mean of the tokens), use float64, or, for a few thousand tokens, form='dense'."
    )
