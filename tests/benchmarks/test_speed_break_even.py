"""Lengths at which softmax wins, interpolated between those that were measured."""

from __future__ import annotations

import pytest
from speed.break_even import break_even, describe_ranges, losing_ranges


def test_one_crossing_is_interpolated() -> None:
    # the logarithm is linear: a ratio of 1/2 at 100 and of 2 at 400 is 1 at 200
    ratios = {100: 0.5, 400: 2.0, 50: 0.25}
    (only,) = losing_ranges(ratios)
    assert only == pytest.approx((50, 200))
    assert break_even(ratios) == pytest.approx(200)
    assert describe_ranges(ratios) == "softmax wins at 50 to 200 tokens (of 50 to 400)"


def test_two_ranges_are_both_told() -> None:
    ratios = {10: 0.5, 40: 2.0, 80: 2.0, 320: 0.5, 1280: 2.0}
    first, second = losing_ranges(ratios)
    assert first == pytest.approx((10, 20))
    assert second == pytest.approx((160, 640))
    assert break_even(ratios) == pytest.approx(640)


def test_softmax_that_still_wins_at_the_end_has_no_break_even() -> None:
    ratios = {10: 2.0, 40: 0.5}
    assert break_even(ratios) is None
    assert losing_ranges(ratios) == [pytest.approx((20, 40))]


def test_softmax_that_never_wins() -> None:
    assert losing_ranges({10: 1.0, 40: 3.0}) == []
    assert break_even({10: 1.0, 40: 3.0}) == 10
    assert "nowhere from 10 to 40" in describe_ranges({10: 1.0, 40: 3.0})


def test_a_single_losing_length_between_winning_ones() -> None:
    ((low, high),) = losing_ranges({10: 2.0, 20: 0.5, 40: 2.0})
    assert 10 < low < 20 < high < 40


def test_nothing_measured_is_said() -> None:
    assert describe_ranges({}) == "not measured"
