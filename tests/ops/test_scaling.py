"""The choice of the number of squarings, at and around its steps."""

from __future__ import annotations

import pytest
import torch

from osa_runtime.ops.scaling import largest_norm, scale_factor, squarings_needed


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
