"""The driver: turns, medians, ratios round by round, wrong answers, doubts, and the files that it writes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from driver.benchmark import Benchmark
from driver.contest import LEAST_ROUNDS, Contest, Pace, Variant, fastest
from driver.report import Report, judge, time_cell

from benchmark_rows import FACTS, Place, made_up

PACE = Pace(rounds=3, block_seconds=0, pause=0)
ONES = torch.ones(4, dtype=torch.float64)


def contest(contenders: dict[str, Any], **more: Any) -> Contest:
    variants = {name: {"": Variant(call)} for name, call in contenders.items()}
    return Contest(Place(8), variants, torch.get_num_threads(), **more)


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    # the second round was slow for both: medians of each alone would give 3 / 1
    found = made_up({"ours": [1.0, 10.0, 1.0, 1.0], "theirs": [2.0, 20.0, 6.0, 3.0]})
    assert found.ratio("ours", "theirs").median == pytest.approx(2.5)
    assert found.ratio("theirs", "ours").median == pytest.approx(1 / 2.5, rel=0.05)
    assert found.ratio("ours", "nobody") is None
    assert found.milliseconds("ours").median == 1.0


def test_contenders_take_turns_and_another_begins_each_round() -> None:
    seen: list[str] = []
    row = contest({name: lambda name=name: seen.append(name) for name in "abc"}).measure(PACE)
    assert {name: len(blocks) for name, blocks in row.blocks.items()} == {"a": 3, "b": 3, "c": 3}
    blocks = [name for name, before in zip(seen, [None, *seen[:-1]], strict=True) if name != before]
    # each is called alone before the first round, to see how slow it is; then the rounds
    assert "".join(blocks) == "abc" + "abc" + "bca" + "cab"


@pytest.mark.parametrize("factor", [0.5, 1.02, math.nan, math.inf], ids=str)
def test_a_wrong_answer_has_a_reason_and_no_time(factor: float) -> None:
    calls = {"right": lambda: ONES * 1.001, "wrong": lambda: ONES * factor}
    row = contest(calls, exact=lambda _: ONES).measure(PACE)
    assert set(row.blocks) == {"right"}
    assert row.errors == {"right": pytest.approx(1e-3)}
    assert set(row.missing) == {"wrong"}
    assert row.missing["wrong"].startswith("a wrong answer: its relative error is ")
    assert row.ratio("right", "wrong") is None
    text = report(row, contenders=("right", "wrong")).as_markdown()
    assert f"## No figure\n\n- {Place(8)} (wrong): {row.missing['wrong']}" in text
    assert "| 8 |" in text
    assert "| wrong |" not in text


@pytest.mark.parametrize(("factor", "counts"), [(1.5, True), (math.nan, False), (math.inf, False)], ids=str)
def test_any_finite_answer_of_a_coarse_contender_counts(factor: float, counts: bool) -> None:
    row = contest({"small": lambda: ONES * factor}, exact=lambda _: ONES, coarse=("small",)).measure(PACE)
    assert ("small" in row) is counts
    assert ("small" in row.missing) is not counts


def test_what_has_no_exact_answer_is_timed_without_an_error() -> None:
    row = contest({"a": lambda: ONES}).measure(PACE)
    assert ("a" in row, row.errors) == (True, {})


def test_only_who_has_a_time_is_weighed() -> None:
    weighed: list[str] = []

    def weigh(name: str, _: str) -> dict[str, float | None]:
        weighed.append(name)
        return {"MiB": 5.0}

    calls = {"right": lambda: ONES, "wrong": lambda: -ONES}
    row = contest(calls, exact=lambda _: ONES, weigh=weigh, missing={"third": "not here"}).measure(PACE)
    assert weighed == ["right"]
    assert (row.figure("right", "MiB"), row.figure("wrong", "MiB")) == (5.0, None)
    assert row.missing["third"] == "not here"


def test_the_fastest_variant_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = {"slow": [[3_000_000]], "quick": [[1_000_000]]}
    monkeypatch.setattr("driver.contest.rotate_at", lambda *_: blocks)
    variants = {"slow": Variant(lambda: None), "quick": Variant(lambda: None)}
    assert fastest(variants) == "quick"
    assert fastest({"only": Variant(lambda: None)}) == "only"


def test_slow_variants_are_called_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {1: 9.0, 2: 0.1}
    monkeypatch.setattr("driver.contest.seconds_of", lambda call: times[call()])
    assert fastest({"slow": Variant(lambda: 1), "quick": Variant(lambda: 2)}) == "quick"


def test_a_slow_contender_is_not_warmed_up_and_called_once_per_round() -> None:
    slow, long, quick = (Pace().schedule(seconds) for seconds in (2.0, 0.2, 1e-4))
    assert (slow.warm_up, slow.iterations, slow.seconds, slow.blocks) == (0, LEAST_ROUNDS, 0, LEAST_ROUNDS)
    assert (long.warm_up, long.iterations, long.seconds, long.blocks) == (1, LEAST_ROUNDS, 0, LEAST_ROUNDS)
    assert (quick.warm_up, quick.iterations, quick.blocks) == (3, 3 * LEAST_ROUNDS, LEAST_ROUNDS)


def test_steady_rounds_of_a_quiet_machine_are_not_doubted() -> None:
    assert made_up({"ours": 1.0}).doubt("ours") is None


def test_a_wide_spread_is_doubted() -> None:
    found = made_up({"ours": [1.0, 1.5] * LEAST_ROUNDS, "theirs": [1.0] * 2 * LEAST_ROUNDS})
    assert "spread by more than 20%" in str(found.doubt("ours"))
    assert found.doubt("theirs") is None
    assert time_cell(found, "ours").endswith("!")
    assert not time_cell(found, "theirs").endswith("!")


def test_few_rounds_are_doubted() -> None:
    assert "14 rounds are too few" in str(made_up({"ours": [1.0] * (LEAST_ROUNDS - 1)}).doubt("ours"))


def test_other_processes_are_a_doubt_though_the_rounds_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osa_runtime.benchmarking.machine.usable_cores", lambda: 2)
    times = {"ours": 1.0}
    assert "other processes used 1.0 of 2 cores" in str(made_up(times, busy=1.0, threads=2).doubt("ours"))
    assert made_up(times, busy=1.0, threads=1).doubt("ours") is None  # the second core was idle
    assert made_up(times, busy=None, threads=2).doubt("ours") is None


def report(*rows: Any, facts: dict[str, Any] = FACTS, **layout: Any) -> Report:
    settings = {"contenders": ("x", "y"), "ratios": {"× y": ("x", "y")}, **layout}
    return Benchmark("d", "name", "Title", "About.", lambda _: iter(()), lambda _: (), **settings).report(rows, facts)


def test_every_reason_is_told_once() -> None:
    few, wide = [1.0] * 3, [1.0, 1.5] * LEAST_ROUNDS
    (only,) = report(made_up({"x": few, "y": few}, Place(1)), made_up({"x": few}, Place(2))).doubts
    assert only == f"{Place(1)} (x; y) / {Place(2)} (x): 3 rounds are too few; expected 15 or more."
    (some,) = report(made_up({"x": wide, "y": [1.0] * len(wide)}, Place(1)), made_up({"x": 1.0}, Place(2))).doubts
    assert some.startswith(f"{Place(1)} (x): ")
    assert report(made_up({"x": 1.0})).doubts == []


def test_a_doubt_is_at_the_top_of_the_report() -> None:
    for rounds, trusted in ((3, False), (LEAST_ROUNDS, True)):
        found = report(made_up({"x": [1.0] * rounds}))
        assert ("Do not trust" not in found.as_markdown()) is trusted
        assert ("Nothing spoke against these figures" in found.as_markdown()) is trusted
        assert found.as_json()["trustworthy"] is trusted


def test_tables_have_errors_ratios_and_figures_and_leave_out_who_was_not_there() -> None:
    rows = [
        made_up({"x": 2.0, "y": 6.0}, Place(8), errors={"x": 3e-7}, figures={"x": {"MiB": 5.5}}),
        made_up({"x": 4.0}, Place(9)),
    ]
    text = report(*rows, contenders=("x", "y", "z")).as_markdown()
    assert "| tokens | x | y | × y |" in text
    assert "| 8 | 2.00 (0%, 3e-07) | 6.00 (0%) | 3.0× (3.00 to 3.00) |" in text
    assert "| 9 | 4.00 (0%) | – | – |" in text
    assert "## MiB\n\n| tokens | x |\n|---|---|\n| 8 | 5.50 |\n| 9 | – |" in text
    turned = report(*rows, across=True).as_markdown()
    assert "| tokens | 8 | 9 |" in turned
    assert "| × y | 3.0× (3.00 to 3.00) | – |" in turned


def test_the_json_has_every_round() -> None:
    found = made_up({"ours": [1.0, 2.0, 4.0]}, busy=0.2, errors={"ours": 1e-6}, variants={"ours": "way"}).as_dict()
    assert (found["tokens"], found["cores_busy_with_others"]) == (8, 0.2)
    ours = found["contenders"]["ours"]
    assert ours["rounds_ms"] == [1.0, 2.0, 4.0]
    assert (ours["median_ms"], ours["calls"], ours["error"], ours["variant"]) == (2.0, 3, 1e-6, "way")
    assert "too few" in ours["doubt"]


def test_a_target_without_a_figure_is_neither_met_nor_missed() -> None:
    assert judge("t", None, least=1).met is None
    assert [judge("t", value, least=1, most=2).met for value in (0.9, 1.0, 2.0, 2.1)] == [False, True, True, False]
    ratio = made_up({"x": 1.0, "y": 2.0}).ratio("x", "y")
    assert (judge("t", ratio, least=2).found, judge("t", ratio, least=2).met) == ("2.00 × (2.00 to 2.00)", True)


def test_a_run_from_options_to_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def contests(options: Any) -> Iterator[Contest]:
        assert (options.quick, options.pace.rounds) == (True, 4)
        for tokens in (2, 4):
            yield Contest(Place(tokens), {"x": {"": Variant(lambda: ONES)}}, options.threads, lambda _: ONES)

    benchmark = Benchmark(
        "d", "name", "Title", "About.", contests, lambda rows: [judge("t", len(rows))], ("x",), panel=lambda _: "all"
    )
    threads = str(torch.get_num_threads())
    benchmark.run(["--quick", "--rounds", "4", "--threads", threads, "--out", str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {"name.json", "name.md", "name-time.svg"}
    written = json.loads((tmp_path / "name.json").read_text())
    assert written["rounds"] == 4
    assert [row["tokens"] for row in written["rows"]] == [2, 4]
    assert written["targets"] == [{"target": "t", "found": "2.00 ×", "met": True}]
    assert "NOISY RUN" in (tmp_path / "name-time.svg").read_text()  # four rounds are no measurement
    assert (tmp_path / "name.md").read_text() in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--rounds", "0"], ["--threads", "-1"], ["--rounds", "x"], ["--unknown"]], ids=str
)
def test_wrong_options_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        Benchmark("d", "name", "Title", "About.", lambda _: (), lambda _: (), ("x",)).run(arguments)
