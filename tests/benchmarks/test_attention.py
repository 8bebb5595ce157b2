"""The operator benchmark: inputs, references, contenders, targets on made-up times, and a quick run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attention
import pytest
import torch
from attention import break_even, softmax_ratios, targets
from contenders import operators
from contenders.operators import (
    HEADS,
    OURS,
    PAPER,
    SGEMM,
    SGEMM_FLOPS,
    SOFTMAX,
    TRAINED_NORM,
    Operators,
    Point,
    make_inputs,
    minimal_flops,
    share_of_sgemm,
    spectral_norm,
)
from driver.contest import Pace, Row, relative_error

from benchmark_rows import FACTS, made_up
from osa_runtime.ops import reference

pytestmark = pytest.mark.slow

GRID = ((1, 17), (1, 197))
PACE = Pace(rounds=2, block_seconds=0, pause=0)


def measured(ours_at_long: float = 10.0, **changed: dict[str, float]) -> dict[Point, Row]:
    """Ours takes 1 ms up to 1024 tokens; the paper's method 5 and 8 of them; softmax wins up to 394 tokens."""
    times = {
        17: {OURS: 1.0, PAPER: 5.0, SOFTMAX: 0.25},
        197: {OURS: 1.0, PAPER: 8.0, SOFTMAX: 0.5},
        788: {OURS: 1.0, SOFTMAX: 2.0},
        1024: {OURS: 1.0, SOFTMAX: 2.6},
        4096: {OURS: ours_at_long, SOFTMAX: 130.0, SGEMM: 30.0},
    }
    times |= {int(tokens): found for tokens, found in changed.items()}
    return {point: made_up(times[point.tokens], point) for point in (Point(1, tokens, 64) for tokens in times)}


@pytest.fixture(autouse=True)
def small_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "FULL", attention.FULL._replace(grid=GRID))


def found(rows: dict[Point, Row]) -> dict[str, tuple[bool | None, str]]:
    listed = list(targets(rows))
    assert len({v.target for v in listed}) == len(listed) == 8
    return {v.target: (v.met, v.found) for v in listed}


def judged(rows: dict[Point, Row], part: str) -> tuple[bool | None, str]:
    return next(value for target, value in found(rows).items() if part in target)


@pytest.mark.parametrize("tokens", [5, 40])
def test_inputs_have_the_norm_of_trained_models(tokens: int) -> None:
    inputs = make_inputs(Point(2, tokens, 8))
    q, k = inputs.q.double(), inputs.k.double()
    s = inputs.scale * (q @ k.mT - k @ q.mT)
    assert float(torch.linalg.matrix_norm(s, 2).max()) == pytest.approx(TRAINED_NORM, rel=1e-5)
    assert spectral_norm(inputs.q, inputs.k, inputs.scale) == pytest.approx(TRAINED_NORM, rel=1e-5)


@pytest.mark.parametrize("tokens", [5, 16, 40])
def test_the_references_agree_with_the_slow_definitions(tokens: int) -> None:
    inputs = make_inputs(Point(2, tokens, 8))
    exact = reference.orthogonal_attention(inputs.q, inputs.k, inputs.v, inputs.scale)
    assert relative_error(inputs.exact_orthogonal(), exact) < 1e-12
    soft = torch.nn.functional.scaled_dot_product_attention(*(x.double() for x in (inputs.q, inputs.k, inputs.v)))
    assert relative_error(inputs.exact_softmax(), soft) < 1e-12


@pytest.mark.parametrize("tokens", [5, 16, 40])
def test_the_method_of_the_paper_computes_the_same(tokens: int) -> None:
    inputs = make_inputs(Point(1, tokens, 8))
    found = operators.paper_attention(inputs.q, inputs.k, inputs.v, inputs.scale)
    assert relative_error(found, inputs.exact_orthogonal()) < 1e-5


def test_minimal_operations() -> None:
    # one head: FᵀP is 2·N·2d·3d, F·Y is 2·N·2d·d; the core three products of 2d and one with FᵀV
    point = Point(1, 1000, 10)
    assert minimal_flops(point) == HEADS * (2 * 1000 * 20 * 30 + 2 * 1000 * 20 * 10 + 3 * 2 * 20**3 + 2 * 20 * 20 * 10)
    assert minimal_flops(Point(4, 1000, 10)) == 4 * minimal_flops(point)


def test_targets_that_are_met() -> None:
    for target, (met, text) in found(measured()).items():
        if "d = 32" in target:
            assert (met, text) == (None, "not measured")
        else:
            assert met is True, (target, text)


def test_a_point_below_4_times_misses_and_is_named() -> None:
    rows = measured(**{"17": {OURS: 1.0, PAPER: 3.9, SOFTMAX: 0.25}})
    met, text = judged(rows, "every point")
    assert met is False
    assert "3.90 × at least (batch 1, 17 tokens, d = 64)" in text
    assert judged(rows, "geometric") == (False, "5.59 ×")


@pytest.mark.parametrize("gone", [True, False])
def test_a_point_of_the_grid_without_a_ratio_is_not_a_success(gone: bool) -> None:
    rows = measured(**{"17": {OURS: 1.0}})
    if gone:
        del rows[Point(1, 17, 64)]
    assert judged(rows, "every point") == judged(rows, "geometric") == (None, "not measured")


def test_break_even_is_interpolated_and_told() -> None:
    # 1/2 at 197 and 2 at 788: even at 394
    assert softmax_ratios(measured(), 64)[197] == pytest.approx(0.5)
    assert judged(measured(), "beyond 450") == (True, "beyond 394 (of 17 to 4096 tokens)")


def test_a_break_even_that_is_too_late_misses() -> None:
    late = {"788": {OURS: 1.0, SOFTMAX: 0.9}}
    met, text = judged(measured(**late), "beyond 450")
    assert (met, text.startswith("beyond 8")) == (False, True)
    assert judged(measured(ours_at_long=131.0), "beyond 450") == (False, "never (of 17 to 4096 tokens)")


def test_one_crossing_is_interpolated() -> None:
    # the logarithm is linear: a ratio of 1/2 at 100 and of 2 at 400 is 1 at 200
    assert break_even({100: 0.5, 400: 2.0, 50: 0.25}) == pytest.approx(200)


def test_the_last_crossing_counts() -> None:
    assert break_even({10: 0.5, 40: 2.0, 80: 2.0, 320: 0.5, 1280: 2.0}) == pytest.approx(640)


def test_softmax_that_still_wins_at_the_end_has_no_break_even() -> None:
    assert break_even({10: 2.0, 40: 0.5}) is None


def test_softmax_that_never_wins() -> None:
    assert break_even({10: 1.0, 40: 3.0}) == 10


def test_the_share_of_the_sgemm_rate() -> None:
    long = measured()[Point(1, 4096, 64)]
    expected = (minimal_flops(long.place) / 10.0) / (SGEMM_FLOPS / 30.0)
    share = share_of_sgemm(long)
    assert share is not None
    assert share.median == pytest.approx(expected, rel=1e-6)
    assert share_of_sgemm(measured()[Point(1, 17, 64)]) is None


def test_the_table_has_ratios_of_both_peers() -> None:
    text = attention.BENCHMARK.report(list(measured().values()), FACTS).as_markdown()
    assert "| 1 | 17 | 64 | 1.00 (0%) | 5.00 (0%) | 0.250 (0%) | 5.0× (5.00 to 5.00) | 0.25× (0.25 to 0.25) |" in text
    assert "Nothing spoke against these figures" in text


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Operators:
    return Operators(32, torch.get_num_threads(), tmp_path_factory.mktemp("operators"))


@pytest.mark.parametrize("tokens", [5, 80])
def test_every_contender_computes_what_it_should(opened: Operators, tokens: int) -> None:
    names = (*operators.ALL, SGEMM)
    row = opened.contest(Point(2, tokens, 32), names).measure(PACE)
    assert (set(row.blocks), row.missing) == (set(names), {})
    assert set(row.errors) == set(operators.ALL)
    assert max(row.errors.values()) < 1e-5
    assert row.variants[SOFTMAX] in ("MultiHeadAttention", "Attention", "MatMul–Softmax–MatMul")


def test_a_wrong_answer_has_no_time(opened: Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "paper_attention", lambda q, k, v, scale: v * float("nan"))
    row = opened.contest(Point(1, 80, 32), (OURS, PAPER)).measure(PACE)
    assert set(row.missing) == {PAPER}
    assert (PAPER in row, OURS in row) == (False, True)


def test_variants_that_hold_too_large_scores_are_left_out(opened: Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "MOST_SCORES", 4 * HEADS * 79**2)
    kept = opened.contest(Point(1, 80, 32), (SOFTMAX,)).contenders[SOFTMAX]
    assert set(kept) == {"MultiHeadAttention"}


def test_the_full_plan_has_the_whole_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    points = attention.plan(attention.FULL, 64)
    assert len(attention.FULL.grid) == 7
    for place in attention.FULL.grid:
        assert set(points[Point(*place, 64)]) >= set(operators.ALL)
    assert SGEMM in points[Point(1, 16384, 64)]
    assert {Point(1, tokens, 64) for tokens in (128, 129)} <= set(points)


def test_a_quick_run_writes_everything(
    opened: Operators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(operators, "Operators", lambda *_: opened)  # exported once for all tests
    threads = str(torch.get_num_threads())
    attention.BENCHMARK.run(["--quick", "--threads", threads, "--out", str(tmp_path)])
    written: dict[str, Any] = json.loads((tmp_path / "attention.json").read_text())
    assert written["trustworthy"] is False  # two rounds are no measurement
    assert {"cpu", "cores", "versions"} <= set(written["machine"])
    assert len(written["targets"]) == 8
    assert {(r["batch"], r["tokens"]) for r in written["rows"]} == {(1, 17), (1, 64), (1, 80)}
    for row in written["rows"]:
        for name, figures in row["contenders"].items():
            assert figures["median_ms"] > 0
            assert name == SGEMM or figures["error"] < 1e-4
    text = (tmp_path / "attention.md").read_text()
    assert "Do not trust this run" in text
    assert text in capsys.readouterr().out
    assert "![The attention operator](attention-time.svg)" in text
    assert (tmp_path / "attention-time.svg").read_text().startswith("<?xml")
