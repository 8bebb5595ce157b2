"""The benchmark of the folded layer: a quick run, and targets on made-up times."""

from __future__ import annotations

import json
from pathlib import Path

import layer
import pytest
from speed.contest import LEAST_ROUNDS, Contest, Row

pytestmark = pytest.mark.slow


def test_a_quick_run_writes_times_and_errors(tmp_path: Path) -> None:
    layer.main(["--quick", "--threads", "1", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "layer.json").read_text())
    assert [row["tokens"] for row in written["rows"]] == [8, 200]
    for row in written["rows"]:
        assert set(row["contenders"]) == {layer.FOLDED, layer.APART}
        assert all(found["error"] < 1e-5 for found in row["contenders"].values())


def test_targets_met_and_missed() -> None:
    for ours, expected in ((40, [True, True, True]), (60, [True, False, True]), (110, [False, False, False])):
        blocks = {layer.FOLDED: [[ours]] * LEAST_ROUNDS, layer.APART: [[100]] * LEAST_ROUNDS}
        rows = [Row(place, Contest(blocks, 0.0, 1), {}) for place in layer.TARGETS]
        assert [verdict.met for verdict in layer.verdicts(rows)] == expected
    assert [verdict.met for verdict in layer.verdicts([])] == [None] * 3
