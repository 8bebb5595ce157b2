from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from osa_runtime.errors import DataError
from osa_runtime.pixels import Standardisation
from osa_runtime.training import load_dataset


def test_digits_are_standardised_and_split_once_for_all() -> None:
    digits, again = load_dataset("digits"), load_dataset("digits")
    assert digits.x_train.shape == (1438, 1, 8, 8)
    assert digits.x_test.shape == (359, 1, 8, 8)
    assert digits.classes == 10
    assert digits.x_train.dtype == np.float32
    assert abs(digits.x_train.mean()) < 1e-5
    assert abs(digits.x_train.std() - 1) < 1e-5
    np.testing.assert_array_equal(digits.x_test, again.x_test)
    assert digits.sha256 == again.sha256


def test_no_test_image_is_trained_on() -> None:
    digits = load_dataset("digits")
    assert not {x.tobytes() for x in digits.x_test} & {x.tobytes() for x in digits.x_train}


def test_statistics_come_from_the_training_images_alone(tmp_path: Path) -> None:
    x, y = np.array([0, 0, 2, 2], float).reshape(4, 1, 1) * np.ones((4, 2, 2)), np.array([0, 0, 1, 1])
    np.savez(tmp_path / "mine.npz", x=x, y=y, x_test=x + 1000, y_test=y)
    data = load_dataset(file=tmp_path / "mine.npz")
    assert data.standardisation == Standardisation((1.0,), (1.0,), (0.0, 2.0))
    assert data.x_test.min() == 999


def test_colour_images_become_channels_first_with_a_constant_channel_left_at_zero(tmp_path: Path) -> None:
    x = np.random.RandomState(0).randint(0, 255, (8, 2, 4, 3)).astype(np.uint8)
    x[..., 2] = 255
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(8) % 2)
    data = load_dataset(file=tmp_path / "mine.npz")
    assert (data.channels, data.image_size) == (3, (2, 4))
    assert not data.x_train[:, 2].any()
    assert data.standardisation.pixels == (0, 255)
    assert (data.standardisation.mean[2], data.standardisation.std[2]) == (255, 1)
    assert data.name == "mine.npz"


def test_other_pixels_have_another_fingerprint(tmp_path: Path) -> None:
    x, y = np.zeros((6, 2, 2), np.uint8), np.arange(6) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y)
    np.savez(tmp_path / "b.npz", x=x + 1, y=y)
    first, second = (load_dataset(file=tmp_path / name) for name in ("a.npz", "b.npz"))
    assert first.sha256 != second.sha256


@pytest.mark.parametrize(
    ("name", "message"),
    [("mnits", "did you mean mnist?"), ("Digits", "did you mean digits?"), ("imagenet-21k", "use file=FILE.npz")],
)
def test_an_unknown_name_lists_the_known_ones_and_the_nearest(name: str, message: str) -> None:
    with pytest.raises(DataError, match="known are digits, mnist, fashion-mnist") as caught:
        load_dataset(name)
    assert message in str(caught.value)


def test_a_set_that_was_not_fetched_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="osa data fetch mnist"):
        load_dataset("mnist", folder=tmp_path)
