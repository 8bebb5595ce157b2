"""The benchmark of the folded layer: a quick run, and targets on made-up times."""

from __future__ import annotations

import json
from pathlib import Path

import layer
import pytest

from benchmark_rows import made_up

pytestmark = pytest.mark.slow


def test_a_quick_run_writes_times_and_errors(tmp_path: Path) -> None:
    layer.BENCHMARK.run(["--quick", "--threads", "1", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "layer.json").read_text())
    assert [row["tokens"] for row in written["rows"]] == [8, 200]
    for row in written["rows"]:
        assert set(row["contenders"]) == {layer.FOLDED, layer.APART}
        assert all(found["error"] < 1e-5 for found in row["contenders"].values())


def test_targets_met_and_missed() -> None:
    for ours, expected in ((40.0, [True, True, True]), (60.0, [True, False, True]), (110.0, [False, False, False])):
        rows = {place: made_up({layer.FOLDED: ours, layer.APART: 100.0}, place) for place in layer.TARGETS}
        assert [verdict.met for verdict in layer.targets(rows)] == expected
    assert [verdict.met for verdict in layer.targets({})] == [None] * 3
