from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from osa_runtime.errors import OsaError
from osa_runtime.evidence.deployment import served
from osa_runtime.evidence.pixels import FEWEST, sequences


def test_a_sequence_holds_pixels_of_its_image_in_reading_order() -> None:
    images = np.full((40, 1, 10, 10), -0.5, np.float32)
    random = np.random.RandomState(0)
    for image in images[1:]:  # the first is empty
        image[0].flat[random.permutation(100)[: random.randint(1, 80)]] = random.rand() + 0.1
    made = sequences(images, 30, seed=3)
    assert made["x"].shape == (40, 30, 3)
    assert made["lengths"][0] == 1
    for image, x, length in zip(images[1:], made["x"][1:], made["lengths"][1:], strict=True):
        inked = int((image > -0.5).sum())
        assert min(inked, FEWEST) <= length <= min(inked, 30)
        places = np.round((x[:length, :2] + 2) * 10 / 4).astype(int)
        assert (image[0][places[:, 0], places[:, 1]] == x[:length, 2]).all()
        assert (x[:length, 2] > -0.5).all()
        assert (np.diff(places @ [10, 1]) > 0).all()
        assert (x[length:] == 0).all()
    assert len(set(made["lengths"])) > 10


@pytest.mark.slow
def test_a_server_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OsaError, match="ended with 3 before it was ready"), served(tmp_path / "absent"):
        raise AssertionError("it is not ready")
