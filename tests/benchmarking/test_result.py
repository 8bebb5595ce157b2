"""Percentiles, throughput, ratio, and when figures are doubted, against values worked out by hand."""

from __future__ import annotations

import pytest

from osa_runtime.benchmarking.result import format_ratio, ratio, summarise

MS = 1_000_000


def steady(*milliseconds: float, calls: int = 6) -> list[list[int]]:
    """A block for each value, of that many calls."""
    return [[int(value * MS)] * calls for value in milliseconds]


def test_percentiles_and_throughput() -> None:
    figures = summarise([[i * MS for i in range(start, start + 20)] for start in (1, 21, 41, 61, 81)], rows=4)
    assert figures.calls == 100
    assert (figures.p50_ms, figures.p90_ms, figures.p99_ms) == pytest.approx((50.5, 90.1, 99.01))
    assert figures.rows_per_second == pytest.approx(4 * 100 / 5.05)


def test_steady_figures_are_not_doubted() -> None:
    figures = summarise(steady(2, 2, 2, 2.1, 2), rows=1)
    assert figures.doubt is None
    assert figures.block_medians_ms.median == pytest.approx(2)
    assert figures.doubt is None


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        (steady(1, 1, 1, 1, 2), "spread by 60%, more than 20%"),
        (steady(1, 1, 1, 1, 1, calls=5), "25 calls in 5 blocks are too few"),
        (steady(1, 1, calls=50), "100 calls in 2 blocks are too few"),
    ],
    ids=["spread", "few calls", "few blocks"],
)
def test_a_doubt_says_why(blocks: list[list[int]], reason: str) -> None:
    assert reason in str(summarise(blocks, 1).doubt)


def test_a_busy_machine_is_a_doubt_however_steady_the_figures() -> None:
    assert summarise(steady(1, 1, 1, 1, 1), 1, "others were busy").doubt == "others were busy"


def test_one_slow_call_changes_p99_and_not_the_spread() -> None:
    blocks = steady(1, 1, 1, 1, 1)
    blocks[2][0] = 500 * MS
    figures = summarise(blocks, 1)
    assert figures.doubt is None
    assert (figures.p50_ms, figures.block_medians_ms.relative) == (1, 0)
    assert figures.p99_ms > 100


def test_the_ratio_compares_within_a_round() -> None:
    # The machine slows down threefold half-way: both suffer, and the ratio does not.
    found = ratio(steady(1, 1, 3, 3), steady(2, 2, 6, 6))
    assert (found.median, found.p10, found.p90) == pytest.approx((2, 2, 2))


def test_a_clock_that_saw_nothing_gives_numbers() -> None:
    figures = summarise([[0, 0]], rows=1)
    assert figures.p50_ms > 0
    assert ratio([[0]], [[0]]).median == 1


@pytest.mark.parametrize(
    ("value", "shown"), [(0.97, "0.97×"), (1.02, "1.02×"), (1.94, "1.9×"), (12.6, "13×"), (643.2, "643×")]
)
def test_ratios_are_shown_with_the_digits_that_matter(value: float, shown: str) -> None:
    assert format_ratio(value) == shown
