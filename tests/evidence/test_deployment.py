"""Every model that an experiment trained is exported and verified, once; whatever fails is counted and named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from osa_runtime.errors import ExportError
from osa_runtime.evidence import deployment
from osa_runtime.evidence.runs import Bench
from osa_runtime.models import SkiplessViT, ViTConfig, save_checkpoint
from osa_runtime.training import load_dataset

PASSED = {"samples": 100, "differ": 0, "eager_accuracy": 0.5, "trained_accuracy": 50.0, "verdict": "pass"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    torch.manual_seed(0)
    standardisation = load_dataset("digits").standardisation
    for name in ("first", "second"):
        model = SkiplessViT(ViTConfig(classes=10, dim=8, depth=1, heads=2))
        save_checkpoint(model, tmp_path / "runs" / name / "checkpoint", standardisation=standardisation)
    return Bench("depth", tmp_path, False, lambda _: None, "digits")


@pytest.mark.slow
def test_every_model_is_deployed_and_only_once(bench: Bench) -> None:
    trained = {"first": 0.1, "diverged": 0.0, "second": 0.1}
    found = deployment.deploy_all(bench, trained, limit=30)
    assert [(entry["run"], entry["samples"], entry["differ"]) for entry in found] == [
        ("first", 30, 0),
        ("second", 30, 0),
    ]
    assert [(entry["verdict"], entry["failures"]) for entry in found] == [("pass", [])] * 2
    told: list[str] = []
    again = Bench("depth", bench.out, False, told.append, "digits")
    assert (deployment.deploy_all(again, trained, limit=30), told) == (found, [])
    assert [
        entry["run"] for entry in deployment.deploy_all(Bench("depth", bench.out, True, told.append), trained, limit=30)
    ] == ["first"]


def test_an_export_that_is_refused_is_a_result(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ExportError("it disagrees with eager")

    monkeypatch.setattr(deployment, "export_checkpoint", refuse)
    found = deployment.deploy_all(bench, {"first": 0.1})
    assert deployment.measured(found)["verified"] == 0.0
    assert "- first: it disagrees with eager" in deployment.report(found)


def test_whatever_fails_is_counted_and_named() -> None:
    fine, failed = {"run": "a", **PASSED, "failures": []}, {"run": "b", **PASSED, "failures": ["case 3: off by 2"]}
    failed |= {"verdict": "fail", "differ": 3, "trained_accuracy": 51.0}
    found = deployment.measured([fine, failed])
    assert found == {"saved_difference": 1.0, "most_differing_per_10000": 300.0, "verified": 0.5}
    assert all(claim.judge(found, quick=False).failed for claim in deployment.CLAIMS)
    assert not any(claim.judge(deployment.measured([fine]), quick=False).failed for claim in deployment.CLAIMS)
    assert all(claim.judge(deployment.measured([]), quick=False).failed for claim in deployment.CLAIMS)
    text = deployment.report([fine, failed])
    assert "- b: case 3: off by 2" in text
    assert "- a:" not in text
    assert "differ from eager's for 3 of 200" in text
