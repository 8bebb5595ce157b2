"""Medians, targets and tables of the load benchmark."""

from __future__ import annotations

from typing import Any

import pytest
from serving_load.client import Block
from serving_load.report import as_json, as_markdown, verdicts
from serving_load.rounds import Measured, Point, Series

FACTS: dict[str, Any] = {
    "machine": {"cpu": "P", "cores": 2},
    "rounds": 3,
    "seconds": 1.0,
    "memory": {"ours": 60.0, "kserve": 150.0},
    "judged": True,
    "missing": {"triton": "no wheel for this machine"},
}


def series(*rates: float) -> Series:
    return Series([Block(rate, 1 / rate, 2 / rate, int(rate)) for rate in rates], [0.1 / rate for rate in rates])


def measured(**ours: Series) -> Measured:
    table = {("ours", Point("m", protocol, 16)): value for protocol, value in ours.items()}
    table["kserve", Point("m", "binary", 16)] = Series(failure="HTTP/1.1 500\r\nno")
    table["kserve", Point("m", "json", 16)] = series(100, 10, 100)
    table["kserve", Point("m", "grpc", 16)] = series(150, 15, 150)
    table["ours", Point("m", "binary", 1)] = series(1000, 2000, 1000)
    return Measured(table, others=[0.5, 1.5], runs={"m": [0.0004, 0.0002, 0.0005]})


def met(found: Measured) -> dict[str, bool | None]:
    return {verdict.target: verdict.met for verdict in verdicts(found, "m")}


def test_ratios_are_taken_round_by_round() -> None:
    # the slow second round hurts both; the ratio of each round is 4
    found = {v.target: v for v in verdicts(measured(binary=series(600, 60, 600)), "m")}
    verdict = found["c=16, binary HTTP: at least 4 × kserve (its grpc: its binary HTTP does not work)"]
    assert (verdict.found, verdict.met) == ("4.00 × (4.00 to 4.00)", True)


@pytest.mark.parametrize(("rate", "expected"), [(159, False), (160, True)])
def test_a_second_worker_must_pay(rate: float, expected: bool) -> None:
    found = measured(binary=series(*[100] * 3))
    found.table["ours, 2 workers", Point("m", "binary", 16)] = series(*[rate] * 3)
    assert met(found)["two workers at c=16: at least 1.6 × one"] is expected


def test_what_was_not_measured_is_not_judged() -> None:
    assert met(measured())["c=1, binary HTTP: at least 3 × triton"] is None


def test_overhead_is_beyond_the_models_own_time() -> None:
    assert measured().overhead("ours", Point("m", "binary", 1)) == pytest.approx(0.0006)
    assert met(measured())["overhead per request at c=1: under 0.4 ms"] is False


def test_the_first_protocol_counts_where_it_works() -> None:
    table = measured(binary=series(1), grpc=series(9))
    assert table.fastest("ours", "m", 16, ("binary", "json", "grpc")) == Point("m", "binary", 16)
    assert table.fastest("kserve", "m", 16, ("binary", "json", "grpc")) == Point("m", "grpc", 16)
    assert table.fastest("triton", "m", 16, ("binary", "json", "grpc")) is None


def test_spread_is_relative_to_the_median() -> None:
    assert series(50, 100, 150).spread == 1.0


def test_the_page_names_all_that_has_no_figure() -> None:
    text = as_markdown(measured(binary=series(600, 60, 600)), FACTS)
    assert "triton: no wheel for this machine" in text
    assert "kserve, m, binary, c=16: HTTP/1.1 500 no" in text
    assert "1.0 cores at the median, 1.5 at most" in text
    assert "| ours | 1000 (100 %) | 600 (90 %) |" in text
    assert "| ours | 0.100 | 0.167 |" in text


def test_the_json_keeps_every_round() -> None:
    rows = as_json(measured(binary=series(600, 60, 600)), FACTS)["rows"]
    row = next(row for row in rows if row["contender"] == "ours" and row["concurrency"] == 16)
    assert [block["rate"] for block in row["rounds"]] == [600, 60, 600]
