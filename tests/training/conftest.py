"""Data and settings so small that a run takes a fraction of a second."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from osa_runtime.training import Dataset, TrainingSettings, load_dataset


@pytest.fixture(scope="session")
def images_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 noisy 4×4 images of three classes that differ in brightness."""
    random = np.random.RandomState(1)
    y = np.arange(60) % 3
    x = 80 * y[:, None, None] + random.randint(0, 60, (60, 4, 4))
    path = tmp_path_factory.mktemp("data") / "images.npz"
    np.savez(path, x=x.astype(np.uint8), y=y)
    return path


@pytest.fixture(scope="session")
def images(images_file: Path) -> Dataset:
    return load_dataset(file=images_file)


@pytest.fixture
def tiny() -> TrainingSettings:
    return TrainingSettings(depth=1, dim=8, heads=2, epochs=3, batch_size=16)
