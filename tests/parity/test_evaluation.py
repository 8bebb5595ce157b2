"""Intervals and tests against closed forms and scipy, which the package itself does not need."""

from __future__ import annotations

import math
import random
import time

import pytest

from osa_runtime.parity.evaluation import Accuracy, Evaluation, mcnemar

stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize(
    ("correct", "samples"), [(0, 1), (1, 1), (0, 10), (10, 10), (1, 3), (351, 359), (9772, 10000), (5, 100000)]
)
def test_intervals_are_wilsons(correct: int, samples: int) -> None:
    expected = stats.binomtest(correct, samples).proportion_ci(0.95, "wilson")
    found = Accuracy("m", samples, correct, 0, ()).interval
    assert found == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_mcnemar_is_the_exact_binomial_test() -> None:
    generator = random.Random(0)
    pairs = [(0, 0), (0, 1), (1, 0), (0, 6), (5, 5), (10, 0), (300, 200), (0, 2000), (1500, 1501)]
    pairs += [(generator.randrange(60), generator.randrange(60)) for _ in range(40)]
    for gained, lost in pairs:
        n = gained + lost
        expected = stats.binomtest(gained, n, 0.5).pvalue if n else 1.0
        assert mcnemar(gained, lost) == pytest.approx(expected, rel=1e-9), (gained, lost)
        assert mcnemar(gained, lost) == mcnemar(lost, gained)


def test_known_values() -> None:
    assert mcnemar(0, 6) == 2 / 64
    assert mcnemar(1, 7) == pytest.approx(2 * (1 + 8) / 256)


def test_mcnemar_of_many_differences_is_quick_and_never_overflows() -> None:
    start = time.perf_counter()
    assert mcnemar(5000, 5000) == 1.0
    assert mcnemar(0, 10000) == 0.0  # below the smallest float
    assert 0 < mcnemar(4700, 5300) < 1e-8
    assert time.perf_counter() - start < 10


def result(gained: int, lost: int, samples: int = 1000, nonfinite: int = 0) -> Evaluation:
    mine, theirs = (Accuracy("m", samples, 900 + n, nonfinite, ()) for n in (gained, lost))
    return Evaluation("d", "", mine, theirs, gained + lost, gained, lost)


def test_a_drop_is_beyond_a_limit_only_when_it_is_more() -> None:
    assert result(0, 5).drop == 0.5
    assert not result(0, 5).beyond(0.5)
    assert result(0, 6).beyond(0.5)
    assert not result(7, 0).beyond(0.0)
    for lost in range(1, 200):
        assert not result(0, lost).beyond(lost / 10), lost
        assert result(0, lost).beyond(math.nextafter(lost / 10, 0) - 1e-9), lost


def test_what_a_certificate_accepts() -> None:
    assert result(0, 0).acceptable
    assert result(40, 50).acceptable  # a whole point, but likely chance
    assert not result(0, 50).acceptable
    assert result(50, 0).acceptable
    assert not result(0, 0, nonfinite=1).acceptable
