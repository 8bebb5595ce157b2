"""Medians, targets and tables of the load benchmark."""

from __future__ import annotations

from typing import Any

import pytest
from serving_load.client import Block
from serving_load.rounds import Measured, Point

import serving

FACTS: dict[str, Any] = {
    "machine": {"cpu": "P", "cores": 2, "versions": {"torch": "2"}},
    "threads": 1,
    "rounds": 3,
    "seconds": 1.0,
    "memory": {"ours": 60.0, "kserve": 150.0},
    "missing": {"triton": "no wheel for this machine"},
}


def blocks(*rates: float) -> list[Block]:
    return [Block(rate, 1 / rate, 2 / rate, int(rate), 0.1 / rate) for rate in rates]


def measured(others: float = 0.0, **ours: list[Block]) -> Measured:
    table = {("ours", Point("m", protocol, 16)): value for protocol, value in ours.items()}
    table["kserve", Point("m", "json", 16)] = blocks(100, 10, 100)
    table["kserve", Point("m", "grpc", 16)] = blocks(150, 15, 150)
    table["ours", Point("m", "binary", 1)] = blocks(1000, 2000, 1000)
    failures = {("kserve", Point("m", "binary", 16)): "HTTP/1.1 500 no"}
    return Measured(table, failures, others=[others, others + 0.1], runs={"m": [0.0004, 0.0002, 0.0005]})


def met(found: Measured) -> dict[str, bool | None]:
    return {verdict.target: verdict.met for verdict in serving.verdicts(found, "m")}


def test_ratios_are_taken_round_by_round() -> None:
    # the slow second round hurts both; the ratio of each round is 4
    found = {v.target: v for v in serving.verdicts(measured(binary=blocks(600, 60, 600)), "m")}
    verdict = found["m, c=16, binary HTTP: at least 4 × kserve (its grpc: its binary HTTP does not work)"]
    assert (verdict.found, verdict.met) == ("4.00 × (4.00 to 4.00)", True)


@pytest.mark.parametrize(("rate", "expected"), [(159, False), (160, True)])
def test_a_second_worker_must_pay(rate: float, expected: bool) -> None:
    found = measured(binary=blocks(*[100] * 3))
    found.blocks["ours, 2 workers", Point("m", "binary", 16)] = blocks(*[rate] * 3)
    assert met(found)["m, two workers at c=16: at least 1.6 × one"] is expected


def test_what_was_not_measured_is_not_judged() -> None:
    assert met(measured())["m, c=1, binary HTTP: at least 3 × triton"] is None


def test_overhead_is_beyond_the_models_own_time() -> None:
    assert measured().overhead("ours", Point("m", "binary", 1)) == pytest.approx(0.0006)
    assert met(measured())["m, overhead per request at c=1: under 0.4 ms"] is False


def test_the_first_protocol_counts_where_it_works() -> None:
    found = measured(binary=blocks(1), grpc=blocks(9))
    assert found.fastest("ours", "m", 16, ("binary", "json", "grpc")) == Point("m", "binary", 16)
    assert found.fastest("kserve", "m", 16, ("binary", "json", "grpc")) == Point("m", "grpc", 16)
    assert found.fastest("triton", "m", 16, ("binary", "json", "grpc")) is None


def test_the_page_names_all_that_has_no_figure() -> None:
    text = serving.build_report(measured(binary=blocks(600, 60, 600)), FACTS).as_markdown()
    assert "triton: no wheel for this machine" in text
    assert "kserve, m, binary, 16: HTTP/1.1 500 no" in text
    assert "0.1 cores at the median, 0.1 at most" in text
    assert "| ours | 1000 (100%) | 600 (90%) |" in text
    assert "| ours | 0.100 | 0.167 |" in text


@pytest.mark.parametrize(("others", "trusted"), [(0.0, True), (1.5, False)])
def test_a_busy_machine_is_a_doubt(others: float, trusted: bool) -> None:
    report = serving.build_report(measured(others, binary=blocks(600)), FACTS)
    assert report.as_json()["trustworthy"] is trusted


def test_the_json_keeps_every_round() -> None:
    rows = serving.build_report(measured(binary=blocks(600, 60, 600)), FACTS).as_json()["rows"]
    row = next(row for row in rows if row["contender"] == "ours" and row["concurrency"] == 16)
    assert [block["rate"] for block in row["rounds"]] == [600, 60, 600]
    assert (row["rate"], row["core_seconds"]) == (600, pytest.approx(0.1 / 600))


def test_a_model_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        serving.main(["--contenders", "ours", "--digits", "nowhere"])
    assert "nowhere is not an exported model; run `make demo`" in capsys.readouterr().err
