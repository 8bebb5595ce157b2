"""Turns, failures, targets and tables of the load benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from driver.contest import Pace, Row
from serving_load import contest
from serving_load.client import Block
from serving_load.contest import CORE, ITSELF, LATENCY, MEMORY, OVERHEAD, Point, ServedContest, ServedRow
from serving_load.messages import BadAnswer

import serving
from benchmark_rows import FACTS

PACE = Pace(rounds=3)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "PAUSE", 0)


def asked(*rates: float, busy: float = 0.0) -> Callable[[], Block]:
    blocks = iter([Block(rate, 1 / rate, 2 / rate, int(rate), 0.1 / rate, busy, 60.0) for rate in rates])
    return lambda: next(blocks)


def fails() -> Block:
    raise BadAnswer("HTTP 500:\n  no")


def measured(connections: int = 16, **rates: Any) -> ServedRow:
    names = {name.replace("_", ", "): call for name, call in rates.items()}
    return ServedContest(Point("m", connections), names).measure(PACE)


def judged(row: Row, text: str) -> Any:
    rows = {Point("m", c): row if row.place.connections == c else ServedRow(Point("m", c), {}, 0.0, 2) for c in (1, 16)}
    return next(verdict for verdict in serving.targets(rows) if text in verdict.target)


def test_ratios_are_taken_round_by_round() -> None:
    # the slow second round hurts both; the ratio of each round is 4
    row = measured(ours_binary=asked(500, 50, 500), kserve_binary=asked(125, 12.5, 125))
    verdict = judged(row, "kserve")
    assert verdict.target == "m, c=16, binary HTTP: at least 4 × kserve"
    assert (verdict.found, verdict.met) == ("4.00 × (4.00 to 4.00)", True)


def test_a_rival_without_binary_http_takes_part_in_its_fastest_protocol() -> None:
    rivals = {"kserve_binary": fails, "kserve_json": asked(10, 10, 10), "kserve_grpc": asked(15, 15, 15)}
    verdict = judged(measured(ours_binary=asked(60, 60, 60), **rivals), "kserve")
    assert verdict.target.endswith("at least 4 × kserve (its grpc: its binary HTTP does not work)")
    assert verdict.found.startswith("4.00 ×")
    slow = {"kserve_binary": asked(10, 10, 10), "kserve_grpc": asked(15, 15, 15)}
    assert judged(measured(ours_binary=asked(60, 60, 60), **slow), "kserve").found.startswith("6.00 ×")


@pytest.mark.parametrize(("rate", "expected"), [(159, False), (160, True)])
def test_a_second_worker_must_pay(rate: float, expected: bool) -> None:
    row = measured(ours_binary=asked(100, 100, 100), **{"ours, 2 workers_binary": asked(rate, rate, rate)})
    assert judged(row, "two workers").met is expected


def test_what_was_not_measured_is_not_judged() -> None:
    assert judged(measured(ours_binary=asked(1, 1, 1)), "c=1, binary HTTP: at least 3 × triton").met is None


def test_another_begins_each_round_and_who_failed_is_asked_no_more() -> None:
    seen: list[str] = []

    def note(name: str, call: Callable[[], Block]) -> Callable[[], Block]:
        return lambda: (seen.append(name), call())[1]  # type: ignore[func-returns-value]

    calls = {"a": asked(1, 1, 1), "b": fails, "c": asked(1, 1, 1)}
    row = measured(**{name: note(name, call) for name, call in calls.items()})
    assert "".join(seen) == "abc" + "ca" + "ca"
    assert row.missing == {"b": "HTTP 500: no"}
    assert {name: len(blocks) for name, blocks in row.blocks.items()} == {"a": 3, "c": 3}


def test_overhead_is_beyond_the_models_own_time() -> None:
    row = measured(1, **{ITSELF: asked(2000, 5000, 2500), "ours_binary": asked(1000, 2000, 1000)})
    assert row.figure("ours, binary", OVERHEAD) == pytest.approx(0.6)
    assert judged(row, "under 0.4 ms").met is False
    assert row.figure(ITSELF, CORE) is None


def test_the_page_has_rates_costs_and_what_has_no_figure() -> None:
    missing = {"triton": "no wheel for this machine"}
    calls = {"ours, binary": asked(1000, 2000, 1000), "kserve, binary": fails}
    row = ServedContest(Point("m", 16), calls, missing).measure(PACE)
    page = serving.BENCHMARK
    text = page.report([row, ServedRow(Point("m", 1), {}, 0.0, 2)], FACTS).as_markdown()
    assert "(triton): no wheel for this machine" in text
    assert "(kserve, binary): HTTP 500: no" in text
    assert "| ours, binary | 1000 (4" in text
    for figure, value in ((CORE, "0.100"), (MEMORY, "60.0"), (LATENCY, "1.00")):
        assert (
            f"## {figure}\n\n| model | m | m |\n|---|---|---|\n| connections | 16 | 1 |\n| ours, binary | {value} | – |"
            in text
        )


@pytest.mark.parametrize(("busy", "trusted"), [(0.0, True), (1.5, False)])
def test_a_busy_machine_is_a_doubt_and_few_rounds_are_not(
    busy: float, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osa_runtime.benchmarking.machine.usable_cores", lambda: 2)
    row = measured(ours_binary=asked(600, 600, 600, busy=busy))
    assert (row.doubt("ours, binary") is None) is trusted


def test_the_json_keeps_every_round() -> None:
    found = measured(ours_binary=asked(500, 50, 500)).as_dict()["contenders"]["ours, binary"]
    assert found["rounds_ms"] == [2.0, 20.0, 2.0]


def test_a_model_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        serving.BENCHMARK.run(["--contenders", "ours", "--digits", "nowhere"])
    assert "nowhere is not an exported model; run `make demo`" in capsys.readouterr().err
