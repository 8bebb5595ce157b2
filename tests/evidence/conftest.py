"""Images in the place of MNIST, and no folder of the user's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set called mnist: ten brightnesses."""
    random, folder = np.random.RandomState(0), tmp_path_factory.mktemp("data")

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(count) % 10
        return (random.rand(count, 28, 28) * 60 + 19 * y[:, None, None]).astype(np.uint8), y

    (x, y), (x_test, y_test) = part(300), part(100)
    np.savez(folder / "mnist.npz", x=x, y=y, x_test=x_test, y_test=y_test)
    return folder
