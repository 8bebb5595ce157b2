"""The benchmark of training steps: a quick run, targets on made-up times, and a step that trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from contenders.models import DIGITS, QUICK

import training
from benchmark_rows import made_up

pytestmark = pytest.mark.slow


def test_a_quick_run_writes_times_and_memory(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        training.BENCHMARK.run(["--quick", "--threads", "1", "--out", str(tmp_path)])
    finally:
        torch.set_num_threads(threads)
    written = json.loads((tmp_path / "training.json").read_text())
    assert [row["model"] for row in written["rows"]] == ["digits ViT", "long encoder"]
    for row in written["rows"]:
        assert set(row["contenders"]) == {"osa", "softmax"}
        assert all(found["median_ms"] > 0 for found in row["contenders"].values())
        assert all(found[training.MEMORY] > 0 for found in row["contenders"].values())
    assert f"## {training.MEMORY}" in (tmp_path / "training.md").read_text()


@pytest.mark.parametrize(("ours", "memory", "met"), [(13.0, 5.0, True), (15.0, 7.0, False)])
def test_targets_met_and_missed(ours: float, memory: float, met: bool) -> None:
    figures = {"osa": {training.MEMORY: memory}, "softmax": {training.MEMORY: 6.0}}
    short, long = training.Point(DIGITS.name, 32, 1), training.Point("encoder", 8, 2)
    rows = {
        short: made_up({"osa": ours, "softmax": 10.0}, short),
        long: made_up({"osa": ours, "softmax": 14.0}, long, figures=figures),
    }
    assert [verdict.met for verdict in training.targets(rows)] == [met, met, met]


def test_what_was_not_measured_is_not_judged() -> None:
    long = training.Point("encoder", 8, 2)
    assert [verdict.met for verdict in training.targets({long: made_up({}, long)})] == [None, None]


def test_a_step_reaches_every_weight() -> None:
    model = QUICK[0].build("osa").requires_grad_(True)
    model(QUICK[0].inputs(2)).square().sum().backward()
    assert all(bool(p.grad.abs().sum() > 0) for p in model.parameters() if p.grad is not None)
    assert all(p.grad is not None for p in model.parameters())
