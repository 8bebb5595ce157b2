"""Passes and failures, and no excuse beyond what rounding explains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osa_runtime.parity.comparison import Tolerance
from osa_runtime.parity.feeds import Case
from osa_runtime.parity.judgement import Answers, Rules, judge
from osa_runtime.parity.row_judgement import Finding, Row, RowLimits, judge_row
from osa_runtime.parity.tolerances import EAGER_SHARE, NO_DIGITS_LEFT, UNDECIDED_FACTOR, Spread

RTOL = 1e-5
LIMITS = RowLimits(Tolerance(RTOL), largest_norm=1000.0)
quick = settings(max_examples=200)
seeds = st.integers(0, 2**32)


def row(artifact: Any, eager: Any, oracle: Any, **more: Any) -> Row:
    arrays = [None if x is None else np.asarray(x, np.float64) for x in (artifact, eager, oracle)]
    return Row(0, *arrays, **{"norm": 1.0} | more)  # type: ignore[arg-type]


def judged(artifact: Any, truth: np.ndarray, theirs: float, moves: float, **more: Any) -> Finding:
    """Eager is ``theirs`` away from float64, and float64 moves by ``moves``."""
    push = np.zeros_like(truth)
    push[np.argmax(np.abs(truth))] = np.max(np.abs(truth))
    eager, moved = truth + theirs * push, truth + moves * push
    return judge_row(row(artifact, eager, truth, **more), LIMITS, lambda: [truth, moved])


def values(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(10) * 10.0 ** np.random.default_rng(seed + 1).uniform(-9, 9)


@quick
@given(seeds, st.floats(0, 10), st.floats(0, 10))
def test_what_is_within_the_tolerance_passes_whatever_rounding_does(seed: int, theirs: float, moves: float) -> None:
    truth = values(seed)
    assert judged(truth * (1 + 0.9 * RTOL), truth, theirs, moves).verdict == "pass"


@quick
@given(seeds, st.floats(0, 3), st.floats(0, 3), st.floats(1e-4, 1e6))
def test_nothing_is_excused_beyond_a_few_times_what_rounding_explains(
    seed: int, theirs: float, moves: float, off: float
) -> None:
    truth = values(seed)
    explained = max(EAGER_SHARE * theirs, moves)
    found = judged(truth * (1 + off), truth, theirs, moves)
    if off > UNDECIDED_FACTOR * max(explained, RTOL) * 1.001:
        assert found.verdict == "fail"
    if found.verdict == "undecided":
        assert explained > NO_DIGITS_LEFT
    if found.verdict == "pass":
        assert off <= max(explained, RTOL) * 1.001


@pytest.mark.parametrize("factor", [0.0, 0.01, 100.0, 1000.0])
def test_magnitudes_are_compared_where_no_digits_are(factor: float) -> None:
    truth = values(0)
    assert judged(-truth, truth, 1.5, 1.5).verdict == "undecided"
    assert judged(factor * truth, truth, 1.5, 1.5).verdict == "fail"


def test_nan_is_right_only_where_it_must_be() -> None:
    nan, truth = np.full(3, np.nan), np.ones(3)
    assert judged(nan, truth, 0.0, 0.0).verdict == "fail"
    assert judged(nan, truth, 0.0, 0.0, norm=249.0).verdict == "fail"
    beyond = judged(nan, truth, 0.0, 0.0, norm=251.0)  # the graph's own bound may be four times ‖S‖
    assert (beyond.verdict, beyond.error) == ("pass", None)
    assert judge_row(row(nan, nan, nan), LIMITS, lambda: None).verdict == "pass"
    assert judge_row(row(truth, nan, nan), LIMITS, lambda: None).verdict == "fail"
    assert judge_row(row(truth, nan, truth), LIMITS, lambda: None).verdict == "pass"  # eager alone overflows
    assert judge_row(row(nan, nan, truth), LIMITS, lambda: None).verdict == "undecided"
    half = np.array([1.0, np.nan, 1.0])
    assert judge_row(row(half, half, half), LIMITS, lambda: None).verdict == "pass"
    assert judge_row(row(np.ones(3), half, half), LIMITS, lambda: None).verdict == "fail"


def test_finite_values_where_eager_refuses_fail() -> None:
    truth = np.ones(3)
    refused: dict[str, Any] = {"refusal": "too large", "norm": 5000.0}
    assert judge_row(row(truth, None, truth, **refused), LIMITS, lambda: None).verdict == "fail"
    nan = row(truth * np.nan, None, truth, shown=True, **refused)
    assert judge_row(nan, LIMITS, lambda: None).verdict == "pass"
    near = row(truth, None, truth, refusal="too large", norm=500.0)  # both bounds have a slack
    assert judge_row(near, LIMITS, lambda: None).verdict == "pass"
    assert judge_row(row(-truth, None, truth, refusal="x", norm=500.0), LIMITS, lambda: None).verdict == "fail"


def test_whole_numbers_are_equal_or_fail_unless_rounding_decides_them() -> None:
    one, two = np.array([1.0, 3.0]), np.array([2.0, 3.0])
    assert judge_row(row(one, one, one, whole=True), LIMITS, lambda: None).verdict == "pass"
    assert judge_row(row(two, one, one, whole=True), LIMITS, lambda: [one, one]).verdict == "fail"
    assert judge_row(row(two, one, one, whole=True), LIMITS, lambda: [one, two]).verdict == "undecided"


def test_a_tolerance_of_the_user_excuses_nothing() -> None:
    truth = values(0)
    strict = RowLimits(Tolerance(RTOL), strict=True)
    assert judge_row(row(truth * 1.1, truth * 2, truth), strict, lambda: [truth, truth * 3]).verdict == "fail"


def test_a_row_does_not_hide_another() -> None:
    """Neither one of large values nor one without digits."""
    truth = np.array([[1e6, 2e6], [1.0, 2.0], [3.0, 1.0]])
    wrong = truth.copy()
    wrong[1] *= -1
    chaotic = truth.copy()
    chaotic[0] *= -1
    rules = Rules(lambda _: Tolerance(RTOL), "batch", spread=lambda _: Spread({"y": truth}, [{"y": chaotic}]))
    case = Case("random", {"batch": 3}, {})

    def verdict(actual: np.ndarray) -> str:
        return judge(case, Answers({"y": actual}, {"y": truth}, {"y": truth}), rules, ["y"]).verdict

    assert verdict(truth) == "pass"
    assert verdict(wrong) == "fail"
    assert verdict(chaotic) == "undecided"
    both = np.concatenate([chaotic[:1], wrong[1:]])
    result = judge(case, Answers({"y": both}, {"y": truth}, {"y": truth}), rules, ["y"])
    assert result.verdict == "fail"
    assert result.outputs[0].reason.startswith("row 1 of 3: ")


def test_all_rows_refused_is_undecided() -> None:
    rules = Rules(lambda _: Tolerance(RTOL), "batch", largest_norm=10.0)
    answers = Answers({"y": np.full((2, 3), np.nan)}, None, None, np.full(2, 100.0), {0: "far", 1: "far"})
    assert judge(Case("scaled", {"batch": 2}, {}), answers, rules, ["y"]).verdict == "undecided"
