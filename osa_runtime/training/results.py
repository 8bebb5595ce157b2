"""The results of a run: ``metrics.json``, enough to compare and to repeat it, and the learning curve as a figure."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from osa_runtime.atomic import atomic_file
from osa_runtime.environment import installed_version
from osa_runtime.plotting import logarithmic, write_figure
from osa_runtime.training.datasets import Dataset
from osa_runtime.training.loop import EpochRecord
from osa_runtime.training.settings import TrainingSettings

COLOURS = {"train": "#9aa5b1", "test": "#0b6e99"}


def write_metrics(
    path: Path, settings: TrainingSettings, data: Dataset, history: Sequence[EpochRecord], parameters: int
) -> None:
    last = history[-1]
    content = {
        "format": 1,
        "settings": settings.as_dict(),
        "data": _describe(data),
        "parameters": parameters,
        "test_accuracy": last.test_accuracy,
        "test_loss": last.test_loss,
        "seconds": round(sum(record.seconds for record in history), 3),
        "epochs": [dataclasses.asdict(record) for record in history],
        "versions": _versions(),
        "threads": torch.get_num_threads(),
    }
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def _describe(data: Dataset) -> dict[str, Any]:
    """The data, and the standardisation of pixels that the model expects."""
    return {
        "name": data.name,
        "sha256": data.sha256,
        "train_images": len(data.y_train),
        "test_images": len(data.y_test),
        "classes": data.classes,
        "class_names": list(data.class_names),
        "preprocessing": data.standardisation.as_dict(),
    }


def _versions() -> dict[str, str]:
    packages = {name: installed_version(name) for name in ("osa-runtime", "torch", "numpy", "scikit-learn")}
    return {"python": platform.python_version(), **{name: found for name, found in packages.items() if found}}


def draw_curve(history: Sequence[EpochRecord], title: str, path: Path) -> None:
    """Write loss and accuracy against epochs, side by side, as PNG or SVG."""

    def draw(figure: Any) -> None:
        loss, accuracy = figure.subplots(1, 2)
        _plot(loss, history, "loss", 1.0)
        _plot(accuracy, history, "accuracy", 100.0)
        loss.set_title(f"Cross-entropy · last test {history[-1].test_loss:.3f}")
        accuracy.set_title(f"Accuracy · last test {100 * history[-1].test_accuracy:.2f} %")
        accuracy.yaxis.set_major_formatter("{x:g} %")
        low, high = loss.dataLim.intervaly
        if low > 0 and high / low > 10:  # only then does a logarithmic axis show more of the end, with enough ticks
            logarithmic(loss.yaxis, subs=(1.0,) if high / low > 100 else (1.0, 2.0, 5.0))
        figure.suptitle(title, fontsize=11, x=0.01, ha="left", fontweight="bold")

    write_figure(path, (9, 3.8), draw)


def _plot(axes: Any, history: Sequence[EpochRecord], quantity: str, factor: float) -> None:
    for part, colour in COLOURS.items():
        values = [factor * getattr(record, f"{part}_{quantity}") for record in history]
        axes.plot([record.epoch for record in history], values, color=colour, lw=2, marker="o", ms=3.5, label=part)
    axes.set_xlabel("epoch")
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.grid(visible=False, axis="x")
    axes.legend()
