"""The benchmark of smaller models: its table says what was measured; what is not there is left out, not invented."""

from __future__ import annotations

from pathlib import Path

import pytest
from smaller_models import Quality, Subject, measure, quality_table, trained
from speed.contest import Contest, Pace

pytestmark = pytest.mark.slow


def contest(**milliseconds: list[float]) -> Contest:
    return Contest({name: [[round(1e6 * x)] for x in values] for name, values in milliseconds.items()}, 0.0, 1)


def test_the_table_has_ratios_next_to_the_time_of_fp32() -> None:
    quality = {"fp32": Quality(4 * 2**20, 0.0, 0.9777), "small": Quality(2**20, 0.019, None)}
    found = quality_table(quality, {1: contest(fp32=[2.0, 2.0, 2.0], small=[5.0, 4.0, 4.0])})
    *_, first, second = found.splitlines()
    assert first == "| fp32 | 97.77% | 0.00% | 4.00 MiB | 2.00 ms |"
    assert second == "| small |  | 1.90% | 1.00 MiB (1/4.0) | 0.50 (0.42–0.50) |"


def test_accuracy_and_deviation_are_of_the_artifact_itself(exported, tmp_path: Path) -> None:
    from osa_runtime.quantization import quantize
    from osa_runtime.runtime.session import load
    from small_models import feeds

    source, images = exported("vit", "onnx"), feeds("vit", 40)["images"]
    quantize(source, tmp_path / "small")
    with load(source) as session:
        labels = session.run({"images": images})["logits"].argmax(1)
    labels[:10] = (labels[:10] + 1) % 10
    subject = Subject("small", tmp_path, images, images, labels, (1, 2))
    pace = Pace(rounds=2, block_seconds=0, pause=0)
    quality, contests = measure(subject, {"fp32": source, "8-bit weights": tmp_path / "small"}, pace)
    assert (quality["fp32"].accuracy, quality["fp32"].deviation) == (0.75, 0.0)
    assert 0 < quality["8-bit weights"].deviation < 0.1
    assert all("8-bit weights" in contests[batch] for batch in (1, 2))


def test_data_that_was_not_fetched_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OSA_DATA", str(tmp_path))
    assert trained("mnist", tmp_path) is None
    assert "osa data fetch mnist" in capsys.readouterr().out
