"""A small model of digits, trained for a moment, in all formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
from made_once import export_checkpoint
from osa_runtime.models import SkiplessViT, ViTConfig, save_checkpoint
from osa_runtime.training.datasets import load_dataset

Made = Callable[..., Path]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some hundred steps are enough to be right more often than not, and wrong often enough to count."""
    torch.manual_seed(0)
    data = load_dataset("digits")
    model = SkiplessViT(ViTConfig(classes=10, dim=16, depth=1, heads=2))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
    for step in range(120):
        rows = torch.arange(step * 32, step * 32 + 32) % len(y)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("evaluated") / "checkpoint"
    return save_checkpoint(model, folder, standardisation=data.standardisation)


@pytest.fixture(scope="session")
def made(checkpoint: Path) -> Made:
    def export(kind: str = "onnx", **options: object) -> Path:
        folder = checkpoint.parent / "-".join([kind, *map(str, options.values())])
        if not folder.exists():
            export_checkpoint(checkpoint, folder, format=kind, **options)
        return folder

    return export


@pytest.fixture(scope="session")
def right(checkpoint: Path) -> np.ndarray:
    """The test images that the model classifies correctly, fed as in training."""
    from osa_runtime.models import load_checkpoint

    data = load_dataset("digits")
    with torch.no_grad():
        answers = load_checkpoint(checkpoint)(torch.from_numpy(data.x_test)).argmax(1).numpy()
    return answers == data.y_test
