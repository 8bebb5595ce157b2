"""Queries and keys whose structure makes S hard to compute, and exp(S)·V from an S in extended precision."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from osa_runtime.ops import reference

KINDS = (
    "random",
    "parallel",
    "symmetric",
    "rank one",
    "signs",
    "outlier",
    "constant",
    "spread",
    "repeated columns",
    "zero columns",
    "nothing",
)


@dataclass(frozen=True, eq=False)
class Problem:
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float


@st.composite
def problems(draw: st.DrawFn, widths: tuple[int, ...] = (1, 2, 3, 8, 16)) -> Problem:
    """float32 inputs with |c|·‖Q‖·‖K‖ over eighteen orders of magnitude, and S up to nine orders below it."""
    d = draw(st.sampled_from(widths))
    tokens = draw(st.sampled_from((1, 2, 5, 2 * d, 2 * d + 1, 3 * d + 1, 7 * d, 90)))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    q, k = structured(draw(st.sampled_from(KINDS)), tokens, d, 10.0 ** draw(st.floats(-9, 0)), generator)
    balance = 10.0 ** draw(st.floats(-12, 12))
    q32, k32 = (torch.from_numpy(x.astype(np.float32)) for x in (q * balance, k / balance))
    terms = float(q32.double().norm() * k32.double().norm())
    scale = float(np.float32(10.0 ** draw(st.floats(-3, 15)) / max(terms, 1e-20)))
    size = 10.0 ** draw(st.one_of(st.just(0), st.floats(-33, 33)))
    v = torch.from_numpy((size * generator.standard_normal((tokens, 3))).astype(np.float32))
    return Problem(q32, k32, v, scale)


def structured(  # noqa: C901  # one branch for each kind
    kind: str, tokens: int, d: int, small: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    q, k = generator.standard_normal((2, tokens, d))
    if kind == "parallel":
        k = 1.5 * q + small * k
    if kind == "symmetric":  # K = QX leaves S at zero for every symmetric X
        x = generator.standard_normal((d, d))
        k = q @ (x + x.T) + small * k
    if kind == "rank one":
        q = generator.standard_normal((tokens, 1)) * generator.standard_normal(d) + small * q
    if kind == "signs":  # features of equal magnitude, almost orthogonal to each other, round coherently
        p = generator.choice([-1.0, 1.0], d)
        r = p * np.where(np.arange(d) < (d - 1) // 2, -1.0, 1.0)
        q, k = generator.standard_normal((tokens, 1)) * p, generator.standard_normal((tokens, 1)) * r
    if kind == "outlier":
        q[0], k[-1] = q[0] / small, k[-1] / small
    if kind == "constant":
        q, k = generator.standard_normal(d) + small * q, generator.standard_normal(d) + small * k
    if kind == "spread":
        sizes = 10.0 ** generator.uniform(-6, 6, d)
        q, k = q * sizes, k * sizes[::-1]
    if kind == "zero columns":
        q[:, ::2], k[:, 1::2] = 0.0, 0.0
    if kind == "repeated columns":  # M is degenerate: a few orthonormal columns, those of K one place further
        u = np.linalg.qr(generator.standard_normal((tokens, min(tokens, 4))))[0]
        turn = np.arange(d) % u.shape[1]
        q, k = u[:, turn], np.roll(u, -1, 1)[:, turn] + small * np.roll(u, -2, 1)[:, turn]
    if kind == "nothing":
        k = np.zeros_like(k)
    return q, k


@functools.lru_cache(maxsize=8)
def truth(problem: Problem) -> tuple[Tensor | None, float]:
    """exp(S)·V and ‖S‖₂; None where S is so large that float64 has no digits of it either."""
    q, k = (x.numpy().astype(np.longdouble) for x in (problem.q, problem.k))
    products = np.longdouble(problem.scale) * (q @ k.T)
    s = torch.from_numpy((products - products.T).astype(np.float64))
    norm = float(torch.linalg.matrix_norm(s, 2))
    return (reference.skew_exponential(s) @ problem.v.double() if norm < 1e13 else None), norm


def is_right_or_nan(actual: Tensor, problem: Problem, share: float = 1.0) -> bool:
    """Within ``share`` of the documented tolerance, or NaN throughout: never a third."""
    if bool(actual.isnan().all()):
        return True
    expected, norm = truth(problem)
    if expected is None:
        return False
    tolerance = 1e-10 * max(1.0, norm) if actual.dtype == torch.float64 else 2e-6 * max(1.0, norm / 4)
    return float((actual.double() - expected).abs().max()) <= share * tolerance * float(expected.abs().max())
