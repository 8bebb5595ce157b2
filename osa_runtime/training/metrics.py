"""``metrics.json``: what was trained, how, and what came of it; enough to compare and to repeat a run."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from osa_runtime.atomic import atomic_file
from osa_runtime.training.datasets import Dataset
from osa_runtime.training.loop import EpochRecord
from osa_runtime.training.settings import TrainingSettings


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
    """The data, with what must be done to a pixel before the model sees it."""
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
    packages = {name: _installed(name) for name in ("osa-runtime", "torch", "numpy", "scikit-learn")}
    return {"python": platform.python_version(), **{name: found for name, found in packages.items() if found}}


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
