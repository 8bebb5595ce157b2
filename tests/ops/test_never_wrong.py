"""Whatever the queries and keys are: an answer within the documented tolerance, an error or NaN. Never a third."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from exponents import normal
from osa_runtime import orthogonal_attention
from osa_runtime.errors import ExponentRangeError
from osa_runtime.ops import reference
from osa_runtime.ops.rounding import spectral_estimate
from structured_attention import Problem, is_right_or_nan, problems, truth

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
@settings(max_examples=120, deadline=None)
@given(problem=problems())
def test_eager_is_right_or_refuses(dtype: torch.dtype, problem: Problem) -> None:
    for way, options in WAYS.items():
        assert is_right_or_nan(eager(problem, dtype, **options), problem), way


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        return orthogonal_attention(q, k, v, scale)


@settings(max_examples=120, deadline=None)
@given(problem=problems())
def test_torchscript_is_eager_with_nan_for_errors(problem: Problem) -> None:
    actual = SCRIPTED(problem.q, problem.k, problem.v, torch.tensor(problem.scale))
    torch.testing.assert_close(actual, eager(problem, torch.float32), rtol=0, atol=0, equal_nan=True)


SCRIPTED = torch.jit.script(Attention())


@settings(max_examples=60, deadline=None)
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
