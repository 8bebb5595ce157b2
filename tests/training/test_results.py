from __future__ import annotations

import math
from pathlib import Path

import pytest

from osa_runtime.training.loop import EpochRecord
from osa_runtime.training.run_folder import draw_curve


def history(epochs: int) -> list[EpochRecord]:
    return [
        EpochRecord(n, 2 * math.exp(-n / 4), 1 - 1 / n, 2 * math.exp(-n / 5), 1 - 1 / n, 1.0)
        for n in range(1, epochs + 1)
    ]


@pytest.mark.parametrize("epochs", [1, 2, 40], ids=["one epoch", "two", "many"])
def test_a_figure_is_drawn(tmp_path: Path, epochs: int) -> None:
    draw_curve(history(epochs), "title · α", tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 10_000


def test_a_loss_of_zero_is_drawn(tmp_path: Path) -> None:
    draw_curve(
        [EpochRecord(1, 1.0, 0.5, 1.0, 0.5, 1.0), EpochRecord(2, 0.0, 1.0, 0.0, 1.0, 1.0)], "", tmp_path / "c.png"
    )
    assert (tmp_path / "c.png").exists()
