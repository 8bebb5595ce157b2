"""Accuracy against the float64 reference, over sizes, norms and the inputs that break naive forms."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from exponents import normal, relative_error, scale_for
from osa_runtime.errors import ExponentRangeError
from osa_runtime.ops import orthogonal_attention, reference

# Relative Frobenius error of a float32 result, by ‖S‖₂.
BOUNDS = {0.01: 2e-6, 0.5: 2e-6, 2.0: 2e-6, 5.0: 2e-6, 16.0: 1e-5, 50.0: 1e-5, 160.0: 1e-4, 500.0: 1e-4}
SIZES = [(1, 1), (1, 64), (2, 1), (3, 2), (5, 8), (16, 16), (17, 64), (65, 32), (129, 64), (197, 64), (257, 128)]
CHOICES = list(itertools.product(["auto", "dense", "lowrank"], ["taylor", "pade"]))


def check(
    q: Tensor, k: Tensor, v: Tensor, norm: float, bound: float, choices: Iterable[tuple[str, str]] = CHOICES
) -> None:
    """The reference, which takes most of the time, serves all choices of form and approximant."""
    scale = scale_for(q, k, norm).to(q.dtype)
    expected = reference.orthogonal_attention(q, k, v, scale)
    for form, approximant in choices:
        actual = orthogonal_attention(q, k, v, scale, form=form, approximant=approximant)
        assert float(relative_error(actual, expected).max()) <= bound, (form, approximant, norm)


@pytest.mark.parametrize(("tokens", "width"), SIZES, ids=str)
def test_random_inputs(tokens: int, width: int) -> None:
    q, k, v = (normal(2, tokens, width, seed=seed) for seed in (1, 2, 3))
    for norm, bound in BOUNDS.items():
        check(q, k, v[..., : max(1, width // 2)], norm, bound)


@pytest.mark.parametrize("norm", [2.0, 50.0, 500.0])
def test_long_sequences(norm: float) -> None:
    """Against the paper's evaluation in float64, since the reference would take an N×N eigendecomposition."""
    q, k, v = (normal(1, 2048, 128, seed=seed) for seed in (1, 2, 3))
    _, core = reference.orthonormal_core(q.double(), k.double(), 1.0)
    scale = (norm / torch.linalg.matrix_norm(core, 2)).float()
    expected = reference.paper_attention(q.double(), k.double(), v.double(), scale.double())
    assert float(relative_error(orthogonal_attention(q, k, v, scale), expected)) <= BOUNDS[norm]


def test_norms_just_around_each_threshold() -> None:
    """The number of squarings changes at θ·2ˢ; both sides of every step must be as good."""
    q, k, v = (normal(1, 24, 16, seed=seed) for seed in (4, 5, 6))
    for step in range(-3, 8):
        for factor in (0.98, 1.02, 1.5):
            norm = 0.61 * 2.0**step * factor
            bound = 2e-6 if norm <= 5 else 2e-7 * norm
            check(q, k, v, norm, bound, CHOICES[2:])


@pytest.mark.parametrize("ratio", [1e-4, 1e-2, 1.0, 1e2, 1e4])
@pytest.mark.parametrize(("tokens", "width"), [(9, 8), (80, 16), (200, 64)])
def test_queries_and_keys_of_very_different_size(tokens: int, width: int, ratio: float) -> None:
    q, k, v = normal(1, tokens, width, seed=1) * ratio, normal(1, tokens, width, seed=2), normal(1, tokens, 4, seed=3)
    for norm in (0.5, 5.0, 50.0):
        check(q, k, v, norm, BOUNDS[norm], [("auto", "taylor"), ("lowrank", "taylor")])


@pytest.mark.parametrize("norm", [2.0, 50.0, 500.0])
def test_rank_deficient_inputs(norm: float) -> None:
    q, k = normal(1, 90, 2, seed=1) @ normal(2, 16, seed=2), normal(1, 90, 3, seed=3) @ normal(3, 16, seed=4)
    check(q, k, normal(1, 90, 5, seed=5), norm, BOUNDS[norm], CHOICES[::2])


@pytest.mark.parametrize("form", ["auto", "dense", "lowrank"])
@pytest.mark.parametrize("what", ["q = k", "q = 0", "k = 0", "both 0", "scale 0"])
def test_exponents_that_vanish_leave_v_alone(what: str, form: str) -> None:
    q, k, v = (normal(2, 40, 8, seed=seed) for seed in (1, 2, 3))
    if what == "q = k":
        k = q.clone()
    if what in ("q = 0", "both 0"):
        q = torch.zeros_like(q)
    if what in ("k = 0", "both 0"):
        k = torch.zeros_like(k)
    actual = orthogonal_attention(q, k, v, 0.0 if what == "scale 0" else 0.5, form=form)
    if what == "q = k":
        # QKᵀ − KQᵀ vanishes by cancellation, which the low-rank form sees only up to rounding.
        torch.testing.assert_close(actual, v, rtol=0, atol=1e-6)
    else:
        assert torch.equal(actual, v)


@pytest.mark.parametrize("norm", [2.0, 50.0, 500.0])
@pytest.mark.parametrize("distance", [1.0, 0.3, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize(("tokens", "width"), [(16, 16), (100, 8), (197, 64), (300, 32)])
def test_nearly_parallel_queries_and_keys(tokens: int, width: int, distance: float, norm: float) -> None:
    """The bounds of ordinary inputs hold where QR + matrix_exp loses up to all digits."""
    q, v = normal(1, tokens, width, seed=1), normal(1, tokens, width, seed=2)
    k = 3 * (q + distance * normal(1, tokens, width, seed=3))
    scale = scale_for(q, k, norm).float()
    expected = reference.orthogonal_attention(q, k, v, scale)
    for form in ("auto", "lowrank"):
        out = orthogonal_attention(q, k, v, scale, form=form)
        assert float(relative_error(out, expected)) <= BOUNDS[norm]
        assert abs(float(out.double().norm() / v.double().norm()) - 1) <= BOUNDS[norm]


def test_nearly_parallel_in_float64() -> None:
    q, v = (normal(1, 100, 8, seed=seed, dtype=torch.float64) for seed in (1, 2))
    k = 3 * (q + 1e-5 * normal(1, 100, 8, seed=3, dtype=torch.float64))
    scale = scale_for(q, k, 50.0)
    out = orthogonal_attention(q, k, v, scale, form="lowrank")
    assert float(relative_error(out, reference.orthogonal_attention(q, k, v, scale))) <= 1e-8


def test_cancellation_beyond_float64_is_an_error() -> None:
    q, v = (normal(1, 100, 8, seed=seed, dtype=torch.float64) for seed in (1, 2))
    k = q @ (normal(8, 8, seed=3, dtype=torch.float64) + normal(8, 8, seed=3, dtype=torch.float64).mT)
    with pytest.raises(ExponentRangeError, match="no digits of S"):
        orthogonal_attention(q, k, v, 1e7, form="lowrank")


@pytest.mark.parametrize("norm", [2.0, 50.0])
@pytest.mark.parametrize("mean", [1.0, 3.0, 10.0, 100.0])
def test_tokens_dominated_by_their_mean(mean: float, norm: float) -> None:
    """Tokens as after a one-sided activation: S cancels, and float32 alone would lose up to all digits."""
    for n in (64, 197):
        tokens = normal(1, n, 128, seed=1) + mean * normal(1, 1, 128, seed=2)
        q, k, v = (tokens @ normal(128, 64, seed=seed) for seed in (3, 4, 5))
        scale = scale_for(q, k, norm).float()
        expected = reference.orthogonal_attention(q, k, v, scale)
        assert float(relative_error(orthogonal_attention(q, k, v, scale), expected)) <= BOUNDS[norm]


@pytest.mark.parametrize("form", ["dense", "lowrank"])
def test_entries_of_a_batch_with_very_different_norms(form: str) -> None:
    """The largest norm decides the squarings of all; each entry must be as accurate as alone."""
    q, k, v = (normal(7, 40, 8, seed=seed) for seed in (1, 2, 3))
    norms = torch.tensor([5e-4, 5e-3, 0.05, 0.5, 5.0, 50.0, 500.0], dtype=torch.float64)
    scale = (scale_for(q, k, 1.0) * norms).float()
    expected = reference.orthogonal_attention(q, k, v, scale)
    together = relative_error(orthogonal_attention(q, k, v, scale, form=form), expected)
    bounds = torch.where(norms <= 5, torch.full_like(norms, 2e-6), 2e-7 * norms)
    assert bool((together <= bounds).all()), together
    # Relative to the change that attention makes, too: the small entries must not be washed out.
    change = relative_error(orthogonal_attention(q, k, v, scale, form=form) - v, expected - v)
    assert float(change[:4].max()) <= 2e-4


@pytest.mark.parametrize("form", ["dense", "lowrank"])
def test_a_neighbour_in_the_batch_changes_nothing_beyond_rounding(form: str) -> None:
    q, k, v = (normal(2, 40, 8, seed=seed) for seed in (1, 2, 3))
    alone = orthogonal_attention(q[0], k[0], v[0], 0.02, form=form)
    for factor in (1.0, 1e3):
        q[1] *= factor
        together = orthogonal_attention(q, k, v, 0.02, form=form)[0]
        assert float(relative_error(together, alone)) <= 1e-6


def test_float64_is_accurate_to_its_own_precision() -> None:
    q, k, v = (normal(1, 60, 8, seed=seed, dtype=torch.float64) for seed in (1, 2, 3))
    for norm in (0.5, 5.0, 50.0):
        check(q, k, v, norm, 1e-14 * (1 + norm))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", ["dense", "lowrank"])
def test_halves_are_only_rounded_at_the_end(dtype: torch.dtype, form: str) -> None:
    q, k, v = (normal(2, 300, 16, seed=seed, dtype=dtype) for seed in (1, 2, 3))
    for norm in (0.5, 5.0):
        check(q.float(), k.float(), v.float(), norm, 2e-6, [(form, "taylor")])
        scale = scale_for(q, k, norm)
        actual = orthogonal_attention(q, k, v, scale, form=form)
        assert actual.dtype == dtype
        expected = reference.orthogonal_attention(q, k, v, scale)
        assert float(relative_error(actual, expected).max()) <= torch.finfo(dtype).eps / 2
