"""The operator benchmark: inputs, references, contenders, targets on made-up times, and a quick run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import attention
import pytest
import torch
from attention import (
    break_even,
    build_report,
    describe_ranges,
    losing_ranges,
    softmax_ratios,
    verdicts,
)
from speed import attention_contenders
from speed.attention_contenders import (
    EAGER,
    HEADS,
    PACKED,
    PAPER,
    SEPARATE,
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
from speed.contest import LEAST_ROUNDS, Contest, Pace, Row, relative_error

from osa_runtime.ops import reference

pytestmark = pytest.mark.slow

GRID = ((1, 17), (1, 197))
MACHINE = {"cpu": "P", "cores": 2, "versions": {"torch": "2"}}
FACTS: dict[str, Any] = {"machine": MACHINE, "threads": 2, "rounds": LEAST_ROUNDS}


def row(point: Point, milliseconds: dict[str, float], **more: Any) -> Row:
    blocks = {name: [[round(1e6 * value)]] * LEAST_ROUNDS for name, value in milliseconds.items()}
    return Row(point, Contest(blocks, 0.0, 2), dict.fromkeys(milliseconds, 1e-7), **more)


def made_up(ours_at_long: float = 10.0) -> list[Row]:
    """Ours takes 1 ms up to 1024 tokens; the paper's method 8 of them; softmax wins up to 394 tokens."""
    return [
        row(Point(1, 17, 64), {SEPARATE: 1.0, PACKED: 0.9, PAPER: 5.0, SOFTMAX: 0.25}),
        row(Point(1, 197, 64), {SEPARATE: 1.0, PACKED: 0.9, PAPER: 8.0, SOFTMAX: 0.5}),
        row(Point(1, 788, 64), {SEPARATE: 1.0, PACKED: 0.9, SOFTMAX: 2.0}),
        row(Point(1, 1024, 64), {SEPARATE: 1.0, PACKED: 0.9, SOFTMAX: 2.6}),
        row(Point(1, 4096, 64), {SEPARATE: ours_at_long, PACKED: 9.0, SOFTMAX: 130.0, SGEMM: 30.0}),
    ]


def found(rows: list[Row]) -> dict[str, tuple[bool | None, str]]:
    listed = list(verdicts(rows, GRID))
    assert len({v.target for v in listed}) == len(listed) == 8
    return {v.target: (v.met, v.found) for v in listed}


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
    found = attention_contenders.paper_attention(inputs.q, inputs.k, inputs.v, inputs.scale)
    assert relative_error(found, inputs.exact_orthogonal()) < 1e-5


def test_the_packed_array_is_that_of_a_layer() -> None:
    inputs = make_inputs(Point(2, 7, 8))
    heads = inputs.packed.reshape(2, 7, HEADS, 24).transpose(1, 2)
    for part, expected in zip(heads.split(8, -1), (inputs.q, inputs.k, inputs.v), strict=True):
        assert torch.equal(part, expected)


def test_minimal_operations() -> None:
    # one head: FᵀP is 2·N·2d·3d, F·Y is 2·N·2d·d; the core three products of 2d and one with FᵀV
    point = Point(1, 1000, 10)
    assert minimal_flops(point) == HEADS * (2 * 1000 * 20 * 30 + 2 * 1000 * 20 * 10 + 3 * 2 * 20**3 + 2 * 20 * 20 * 10)
    assert minimal_flops(Point(4, 1000, 10)) == 4 * minimal_flops(point)


def test_targets_that_are_met() -> None:
    for target, (met, text) in found(made_up()).items():
        if "d = 32" in target:
            assert (met, text) == (None, "not measured")
        else:
            assert met is True, (target, text)


def test_a_point_below_4_times_misses_and_is_named() -> None:
    rows = made_up()
    rows[0] = row(Point(1, 17, 64), {SEPARATE: 1.0, PAPER: 3.9, SOFTMAX: 0.25})
    judged = found(rows)
    met, text = next(value for target, value in judged.items() if "every point" in target)
    assert met is False
    assert "3.90 × at least (batch 1, 17 tokens, d = 64)" in text
    met, text = next(value for target, value in judged.items() if "geometric" in target)
    assert (met, text) == (False, "5.59 ×")


def test_a_point_of_the_grid_that_is_missing_is_not_a_success() -> None:
    judged = found(made_up()[1:])
    assert next(value for target, value in judged.items() if "every point" in target) == (None, "not measured")


def test_break_even_is_interpolated_and_told() -> None:
    # 1/2 at 197 and 2 at 788: even at 394
    assert softmax_ratios(made_up(), 64, SEPARATE)[197] == pytest.approx(0.5)
    met, text = next(value for target, value in found(made_up()).items() if "beyond 450" in target)
    assert met is True
    assert text.startswith("beyond 394; softmax wins at 17 to 394 tokens")


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


def test_the_share_of_the_sgemm_rate() -> None:
    long = made_up()[4]
    expected = (minimal_flops(long.place) / 10.0) / (SGEMM_FLOPS / 30.0)
    share = share_of_sgemm(long, SEPARATE)
    assert share is not None
    assert share.median == pytest.approx(expected, rel=1e-6)
    assert share_of_sgemm(made_up()[0], SEPARATE) is None


def test_the_tables_say_where_softmax_wins_and_who_was_wrong() -> None:
    rows = [*made_up(), row(Point(8, 197, 64), {PACKED: 2.0, EAGER: 3.0}, wrong={PAPER: 0.5})]
    text = build_report(rows, FACTS, list(verdicts(rows, GRID))).as_markdown()
    assert "Against ours, separate, softmax wins at 17 to 394 tokens" in text
    assert "batch 8, 197 tokens, d = 64: paper, eager, off by 5.0e-01" in text
    assert "Nothing spoke against these figures" in text
    assert re.search(r"\| 8 \| 197 \| – \| 2\.00 .*\| – \|", text)


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Operators:
    return Operators(32, 1, tmp_path_factory.mktemp("operators"))


@pytest.mark.parametrize("tokens", [5, 80])
def test_every_contender_computes_what_it_should(operators: Operators, tokens: int) -> None:
    names = (*attention_contenders.ALL, SGEMM)
    measured = operators.measure(Point(2, tokens, 32), names, Pace(rounds=2, block_seconds=0, pause=0))
    assert set(measured.contest.blocks) == set(names)
    assert set(measured.errors) == set(attention_contenders.ALL)
    assert max(measured.errors.values()) < 1e-5
    assert measured.wrong == {}
    assert measured.variants[SOFTMAX] in ("MultiHeadAttention", "Attention", "MatMul–Softmax–MatMul")


def test_a_wrong_answer_has_no_time(operators: Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_contenders, "paper_attention", lambda q, k, v, scale: v * float("nan"))
    measured = operators.measure(Point(1, 80, 32), (PACKED, PAPER), Pace(rounds=2, block_seconds=0, pause=0))
    assert set(measured.wrong) == {PAPER}
    assert PAPER not in measured.contest
    assert PACKED in measured.contest


def test_the_full_plan_has_the_whole_grid() -> None:
    points = attention.plan(attention.FULL, 64)
    for place in attention.FULL.grid:
        assert set(points[Point(*place, 64)]) >= set(attention_contenders.ALL)
    assert SGEMM in points[Point(1, 16384, 64)]
    assert {Point(1, tokens, 64) for tokens in (128, 129)} <= set(points)


def test_a_quick_run_writes_everything(
    operators: Operators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attention, "Operators", lambda *_: operators)  # exported once for all tests
    attention.main(["--quick", "--threads", "1", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "attention.json").read_text())
    assert written["trustworthy"] is False  # two rounds are no measurement
    assert {"cpu", "cores", "versions"} <= set(written["machine"])
    assert written["threads"] == 1
    assert len(written["targets"]) == 8
    assert {(r["batch"], r["tokens"]) for r in written["rows"]} == {(1, 17), (1, 64), (1, 80)}
    for measured in written["rows"]:
        for name, figures in measured["contenders"].items():
            assert figures["median_ms"] > 0
            assert name == SGEMM or figures["error"] < 1e-4
    text = (tmp_path / "attention.md").read_text()
    assert "Do not trust this run" in text
    assert text in capsys.readouterr().out
    for file in re.findall(r"\]\((.*\.svg)\)", text):
        assert (tmp_path / file).read_text().startswith("<?xml")
        assert "NOISY RUN" in (tmp_path / file).read_text()


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--threads", "-1"], ["--unknown"]])
def test_wrong_options_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        attention.main(arguments)
