"""The choice of the number of squarings, at and around its steps."""

from __future__ import annotations

import pytest
import torch

from osa_runtime.ops.scaling import most_squarings, scale_factor, squarings_needed


@pytest.mark.parametrize("theta", [0.05, 0.61, 0.84, 1.05])
def test_no_norm_at_a_step_falls_out_of_its_own_range(theta: float) -> None:
    """The logarithm rounds; a norm one ulp above θ·2ˢ must not come out as NaN."""
    for steps in range(12):
        exact = torch.tensor(theta * 2.0**steps)
        for norm in (exact, exact.nextafter(torch.tensor(torch.inf)), exact.nextafter(torch.tensor(0.0))):
            count = squarings_needed(norm[None], theta, most_squarings(False))
            assert steps <= int(count) <= steps + 1
            assert bool(scale_factor(norm[None], theta, count).isfinite().all())


def test_norms_out_of_range_do_not_raise_the_count_of_the_others() -> None:
    norms = torch.tensor([1.0, float("nan"), float("inf"), 1e30])
    count = squarings_needed(norms, 0.61, 20)
    assert int(count) == 1
    assert scale_factor(norms, 0.61, count).isnan().tolist() == [False, True, True, True]
