"""The benchmark of training steps: a quick run, targets on made-up times, and a step that trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from speed.contest import LEAST_ROUNDS, Contest
from speed.model_contenders import QUICK

import training

pytestmark = pytest.mark.slow


def test_a_quick_run_writes_times_and_memory(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        training.main(["--quick", "--threads", "1", "--out", str(tmp_path)])
    finally:
        torch.set_num_threads(threads)
    written = json.loads((tmp_path / "training.json").read_text())
    assert [step["model"] for step in written["steps"]] == ["digits ViT", "long encoder"]
    for step in written["steps"]:
        assert set(step["contenders"]) == {"osa", "softmax"}
        assert all(found["median_ms"] > 0 for found in step["contenders"].values())
    assert "ms of a step" in (tmp_path / "training.md").read_text()


def test_targets_met_and_missed() -> None:
    lesson = training.Lesson(QUICK[0], 2, 1, 1.4)
    for ours, memory, expected in ((13, 5, [True, True]), (15, 7, [False, False])):
        blocks = {"osa": [[ours]] * LEAST_ROUNDS, "softmax": [[10]] * LEAST_ROUNDS}
        found = [(lesson, Contest(blocks, 0.0, 1), {"osa": memory, "softmax": 6})]
        assert [verdict.met for verdict in training.verdicts(found)] == expected
    assert [v.met for v in training.verdicts([(lesson, Contest({}, 0.0, 1), {"osa": None, "softmax": None})])] == [
        None
    ] * 2


def test_a_step_reaches_every_weight() -> None:
    model = QUICK[0].build("osa").requires_grad_(True)
    model(QUICK[0].inputs(2)).square().sum().backward()
    assert all(bool(p.grad.abs().sum() > 0) for p in model.parameters() if p.grad is not None)
    assert all(p.grad is not None for p in model.parameters())
