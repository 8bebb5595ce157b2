"""Any queries and keys have an answer within the documented tolerance, an error or NaN, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor, nn

from exponents import normal, scale_for
from osa_runtime import orthogonal_attention
from osa_runtime.errors import ExponentRangeError, InputError
from osa_runtime.ops import reference
from osa_runtime.ops.rounding import is_in_doubt, spectral_estimate
from structured_attention import Problem, is_right_or_nan, problems, structured, truth

WAYS = {
    "auto": {},
    "lowrank": {"form": "lowrank"},
    "dense": {"form": "dense"},
    "pade": {"approximant": "pade"},
    "fixed": {"form": "lowrank", "squarings": 6},
}


def eager(problem: Problem, dtype: torch.dtype, **options: object) -> Tensor:
    """NaN stands for a refusal."""
    try:
        return orthogonal_attention(
            problem.q.to(dtype), problem.k.to(dtype), problem.v.to(dtype), problem.scale, **options
        )
    except ExponentRangeError:
        return torch.full_like(problem.v, float("nan"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@settings(max_examples=120)
@given(problem=problems())
def test_eager_is_right_or_refuses(dtype: torch.dtype, problem: Problem) -> None:
    for way, options in WAYS.items():
        assert is_right_or_nan(eager(problem, dtype, **options), problem), way


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        return orthogonal_attention(q, k, v, scale)


@settings(max_examples=120)
@given(problem=problems())
def test_torchscript_is_eager_with_nan_for_errors(problem: Problem) -> None:
    actual = SCRIPTED(problem.q, problem.k, problem.v, torch.tensor(problem.scale))
    torch.testing.assert_close(actual, eager(problem, torch.float32), rtol=0, atol=0, equal_nan=True)


SCRIPTED = torch.jit.script(Attention())


@settings(max_examples=60)
@given(one=problems(widths=(8,)), other=problems(widths=(8,)))
def test_an_entry_of_a_batch_does_not_disturb_another(one: Problem, other: Problem) -> None:
    """Entries of one length whose magnitudes and structures have nothing in common."""
    tokens = min(len(one.q), len(other.q))
    pair = [Problem(p.q[:tokens], p.k[:tokens], p.v[:tokens], p.scale) for p in (one, other)]
    q, k, v = (torch.stack([getattr(p, name) for p in pair]) for name in ("q", "k", "v"))
    both = SCRIPTED(q, k, v, torch.tensor([p.scale for p in pair]))
    for alone, together in zip(pair, both, strict=True):
        assert is_right_or_nan(together, alone)
        if not bool(eager(alone, torch.float32).isnan().any()):
            assert bool(together.isfinite().all())


@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_dense_form_takes_over_where_keys_are_queries_times_a_symmetric_matrix(
    scale: float, dtype: torch.dtype
) -> None:
    q, x, v = 10 * normal(40, 16, seed=1), normal(16, 16, seed=2), normal(40, 16, seed=3)
    problem = Problem(q, q @ (x + x.T) + 1e-3 * normal(40, 16, seed=4), v, scale)
    out = eager(problem, dtype)
    assert bool(out.isfinite().all())
    assert is_right_or_nan(out, problem)
    assert bool(eager(problem, dtype, form="lowrank").isnan().all())


def test_beyond_what_the_dense_form_can_afford_it_is_an_error() -> None:
    q, x = 10 * normal(1030, 16, seed=1), normal(16, 16, seed=2)
    k, v = q @ (x + x.T) + 1e-3 * normal(1030, 16, seed=3), normal(1030, 2, seed=4)
    assert bool(orthogonal_attention(q[:1000], k[:1000], v[:1000], 1.0).isfinite().all())
    with pytest.raises(ExponentRangeError, match="no digits of S"):
        orthogonal_attention(q, k, v, 1.0)


def test_features_of_equal_magnitude_keep_their_digits() -> None:
    d = 128
    p = normal(d, seed=1).sign()
    r = p * torch.where(torch.arange(d) < d // 2 - 1, -1.0, 1.0)
    problem = Problem(normal(300, 1, seed=2) * p, normal(300, 1, seed=3) * r, normal(300, 3, seed=4), 2e-3)
    assert 0.5 < truth(problem)[1] < 4
    out = eager(problem, torch.float32)
    assert bool(out.isfinite().all())
    assert is_right_or_nan(out, problem)


@pytest.mark.parametrize("ratio", [1e12, 1e19, 1e25, 1e30])
def test_queries_and_keys_of_very_different_size_are_balanced(ratio: float) -> None:
    q, k, v = normal(60, 8, seed=1) / ratio**0.5, normal(60, 8, seed=2) * ratio**0.5, normal(60, 8, seed=3)
    expected = reference.orthogonal_attention(q, k, v, 0.1)
    torch.testing.assert_close(orthogonal_attention(q, k, v, 0.1).double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", ["dense", "lowrank"])
def test_huge_values_are_an_answer(form: str) -> None:
    q, k, v = normal(60, 8, seed=1), normal(60, 8, seed=2), 1e36 * normal(60, 8, seed=3)
    expected = reference.orthogonal_attention(q, k, v, 0.1) / 1e36
    torch.testing.assert_close(
        orthogonal_attention(q, k, v, 0.1, form=form).double() / 1e36, expected, rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("ratio", [1.0, 1e6, 1e-6, 1e12])
@pytest.mark.parametrize("size", [1e-24, 1e-30, 1e-35])
def test_tiny_values_keep_their_digits(size: float, ratio: float) -> None:
    """Queries times values may be below the range of float32 although the result is not."""
    q, k, v = normal(60, 8, seed=1) / ratio, normal(60, 8, seed=2) * ratio, size * normal(60, 3, seed=3)
    problem = Problem(q, k, v, 0.02)
    out = eager(problem, torch.float32)
    assert bool(out.isfinite().all())
    assert is_right_or_nan(out, problem)


def test_an_entry_that_is_all_padding_stays_in_float32() -> None:
    m, w, norm = torch.zeros(1, 4, 4), torch.zeros(1, 4, 2), torch.zeros(1)
    assert not bool(is_in_doubt(m, w, norm))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("norm", [1e3, 1e4, 1.2e5, 3e5])
def test_repeated_columns_are_right_or_refused_at_large_norms(norm: float, dtype: torch.dtype) -> None:
    """With M degenerate, rounding costs more than the law for other matrices says. Padding keeps the rank low."""
    generator = np.random.default_rng(0)
    for tokens in (3, 4, 5):
        q, k = (
            F.pad(torch.from_numpy(x).float(), (0, 0, 0, 50))
            for x in structured("repeated columns", tokens, 24, 1e-3, generator)
        )
        problem = Problem(q, k, normal(tokens + 50, 3, seed=tokens), float(scale_for(q, k, norm).float()))
        assert is_right_or_nan(eager(problem, dtype, form="lowrank"), problem)
        assert bool(eager(problem, dtype).isfinite().all())
        assert is_right_or_nan(eager(problem, dtype), problem)


@pytest.mark.parametrize("tokens", [6, 40])
@pytest.mark.parametrize("scale", [1e-47, -1e-41, torch.tensor(1e-47, dtype=torch.float64)], ids=str)
def test_a_scale_below_the_range_of_float32_is_an_error(scale: float | Tensor, tokens: int) -> None:
    q, k, v = 1e20 * normal(tokens, 8, seed=1), 1e20 * normal(tokens, 8, seed=2), normal(tokens, 8, seed=3)
    with pytest.raises(ExponentRangeError, match="scale is 1e-4"):
        orthogonal_attention(q, k, v, scale)
    exact = torch.as_tensor(scale, dtype=torch.float64)
    assert bool(SCRIPTED(q, k, v, exact).isnan().all())
    assert bool(orthogonal_attention(q.double(), k.double(), v.double(), scale).isfinite().all())


@pytest.mark.parametrize("scale", [torch.tensor(1j), torch.tensor(True), 10**400], ids=["complex", "bool", "huge"])
def test_a_scale_that_is_no_real_number_is_refused(scale: object) -> None:
    with pytest.raises(InputError, match="scale"):
        orthogonal_attention(*normal(3, 6, 8), scale)  # type: ignore[arg-type]


@pytest.mark.parametrize("d", [1, 2, 8, 64])
def test_the_estimate_of_a_norm_is_close_below_it(d: int) -> None:
    for seed in range(20):
        f = normal(3 * d, d, seed=seed, dtype=torch.float64)
        f[0] *= 10.0 ** (seed % 4)
        gram = f.mT @ f
        ratio = float(spectral_estimate(gram) / torch.linalg.matrix_norm(gram, 2))
        assert 0.55 <= ratio <= 1 + 1e-12


def test_an_overflow_of_half_precision_names_what_overflows() -> None:
    q, k, v = normal(40, 8, seed=1), normal(40, 8, seed=2), normal(40, 8, seed=3).clamp(-1, 1) * 6e4
    with pytest.raises(ExponentRangeError, match=r"The result reaches .* beyond the largest torch.float16"):
        orthogonal_attention(3 * q.half(), 3 * k.half(), v.half(), 0.1)
