"""The benchmark of smaller models: its table says what was measured; what is not there is left out, not invented."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from smaller_models import Contender, Subject, measure, table, trained

from osa_runtime.benchmarking.figures import Spread


def test_the_table_has_ratios_beside_the_time_of_fp32() -> None:
    spread = Spread(0.5, 0.4, 0.6)
    rows = [
        Contender("fp32", 4 * 2**20, 0.9777, 0.0, {1: 2.0, 64: 30.0}, {1: spread, 64: spread}),
        Contender("8-bit weights", 2**20, None, 0.019, {1: 4.0, 64: 60.0}, {1: spread, 64: spread}),
    ]
    subject = Subject("digits", Path(), np.zeros(0), np.zeros(0), None, (1, 64))
    *_, first, second = table(subject, rows).splitlines()
    assert first == "| fp32 | 97.77% | 0.00% | 4.00 MiB | 2.00 ms | 30.00 ms |"
    assert second == "| 8-bit weights |  | 1.90% | 1.00 MiB (1/4.0) | 0.50 (0.40–0.60) | 0.50 (0.40–0.60) |"


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
    exact, rounded = measure(subject, {"fp32": source, "8-bit weights": tmp_path / "small"}, rounds=2)
    assert (exact.accuracy, exact.deviation) == (0.75, 0.0)
    assert 0 < rounded.deviation < 0.1
    assert set(rounded.ratios) == {1, 2}


def test_data_that_was_not_fetched_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OSA_DATA", str(tmp_path))
    assert trained("mnist", tmp_path) is None
    assert "osa data fetch mnist" in capsys.readouterr().out
