"""The bound of ‖S‖ and the choice of the number of squarings, at and around its steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exponents import normal
from osa_runtime.ops.chebyshev import stepped_solution, steps_needed
from osa_runtime.ops.lowrank import core_norm, gram_core, sheared
from osa_runtime.ops.rounding import is_in_doubt, is_lost_in_gram
from osa_runtime.ops.scaling import largest_norm, scale_factor, squarings_needed
from structured_attention import KINDS, structured


@pytest.mark.parametrize("theta", [0.05, 0.61, 0.84, 1.05])
def test_no_norm_at_a_step_falls_out_of_its_own_range(theta: float) -> None:
    """The logarithm rounds; a norm one ulp above θ·2ˢ must not come out as NaN."""
    for steps in range(12):
        exact = torch.tensor(theta * 2.0**steps)
        for norm in (exact, exact.nextafter(torch.tensor(torch.inf)), exact.nextafter(torch.tensor(0.0))):
            count = squarings_needed(norm[None], theta, False)
            assert steps <= int(count) <= steps + 1
            assert float(norm) * 2.0 ** -int(count) <= theta * (1 + 1e-6)


def test_norms_out_of_range_do_not_raise_the_count_of_the_others() -> None:
    norms = torch.tensor([1.0, float("nan"), float("inf"), 1e30])
    count = squarings_needed(norms, 0.61, False)
    assert int(count) == 1
    limit = largest_norm(0.61, -1, False)
    assert scale_factor(norms, limit, count).isnan().tolist() == [False, True, True, True]


def test_the_range_is_the_same_for_every_approximant_unless_the_squarings_are_fixed() -> None:
    assert {largest_norm(theta, -1, False) for theta in (0.61, 0.84, 1.05)} == {2.0**19}
    assert largest_norm(0.84, 3, False) == 0.84 * 8
    assert largest_norm(0.84, 20, False) == 2.0**19


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", KINDS[:-2])  # S vanishes for the last two
def test_the_bound_is_never_below_the_norm_where_it_decides(kind: str, dtype: torch.dtype) -> None:
    """From 1 on, rounding included, wherever the core is used: below 1 nothing depends on it."""
    generator = np.random.default_rng(0)
    compared = 0
    for draw in range(60):
        d = int(generator.choice([1, 2, 3, 8, 16]))
        tokens = int(generator.choice([2 * d + 1, 7 * d]))
        arrays = structured(kind, tokens, d, 10.0 ** generator.uniform(-4, 0), generator)
        q, k = (torch.from_numpy(x.astype(np.float32))[None] for x in arrays)
        products = q.double() @ k.double().mT
        size = torch.linalg.matrix_norm(products - products.mT, 2)
        c = (1.0 + draw % 15) / size.clamp(min=1e-30)[:, None, None]
        if dtype == torch.float64:
            k = sheared(q.double(), k.double())
        m, w, _ = gram_core(q.to(dtype), k.to(dtype), q.to(dtype), c.to(dtype))
        norm = core_norm(m @ m)
        unused = is_in_doubt(m, w, norm) if dtype == torch.float32 else is_lost_in_gram(m, norm, False)
        if not unused and float(size) > 0:
            compared += 1
            exact = size.item() * c.to(dtype).item()
            assert exact * (1 - 1e-6) <= float(norm) <= 1.6 * exact
    assert compared or kind in ("parallel", "symmetric", "constant", "outlier")


def test_steps_are_bounded_whatever_the_norm() -> None:
    """A graph whose branches were exchanged must not run for ever: beyond the range there is NaN, not a longer loop."""
    m, w = normal(3, 4, 4, seed=1), normal(3, 4, 2, seed=2)
    norm = torch.tensor([2.0, 1e18, float("inf")])
    assert int(steps_needed(norm)) == 1
    for_q, for_k = stepped_solution(m, m @ m, norm, w, torch.ones(3, 1, 1), torch.ones(3, 1, 1))
    assert for_q.isnan().flatten(1).all(1).tolist() == [False, True, True]
    assert for_k.isnan().flatten(1).all(1).tolist() == [False, True, True]
