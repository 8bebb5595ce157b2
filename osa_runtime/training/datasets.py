"""Labelled images ready for training: split, standardised, and with a fingerprint of their content."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.environment import require
from osa_runtime.errors import DataError
from osa_runtime.pixels import Standardisation
from osa_runtime.training.catalogue import DIGITS, data_folder, find_known, local_copy
from osa_runtime.training.npz import LabelledImages, check_images, read_class_names, read_npz

TEST_FRACTION = 0.2


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Images (n, channels, height, width) of zero mean and unit variance in float32; labels (n,) in int64.

    ``standardisation`` has the means and deviations of the training images alone, and must be applied to every
    input of the trained model.
    """

    name: str
    x_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    classes: int
    standardisation: Standardisation
    sha256: str
    class_names: tuple[str, ...] = ()

    @property
    def train_inputs(self) -> tuple[NDArray[Any], ...]:
        return (self.x_train,)

    @property
    def test_inputs(self) -> tuple[NDArray[Any], ...]:
        return (self.x_test,)

    @property
    def channels(self) -> int:
        return int(self.x_train.shape[1])

    @property
    def image_size(self) -> tuple[int, int]:
        return int(self.x_train.shape[2]), int(self.x_train.shape[3])


def load_dataset(
    name: str | None = None, *, file: str | os.PathLike[str] | None = None, folder: str | os.PathLike[str] | None = None
) -> Dataset:
    """Load a known data set by ``name``, or the user's own from an ``.npz`` ``file``."""
    if file is not None:
        path = Path(file)
        return _prepare(path.name, *read_npz(path), read_class_names(path))
    return _prepare(name or "", *_known_images(name or "", folder), find_known(name or "").class_names)


def load_test_images(name: str, folder: str | os.PathLike[str] | None = None) -> LabelledImages:
    """The images of a known data set that no training sees, as they were stored."""
    train, test = _known_images(name, folder)
    return test or _split(name, train)[1]


def _known_images(name: str, folder: str | os.PathLike[str] | None) -> tuple[LabelledImages, LabelledImages | None]:
    known = find_known(name)
    if known is DIGITS:
        return _digits(), None
    path = local_copy(known, data_folder(folder))
    if not path.exists():
        raise DataError(f"The data set {known.name} is not in {path.parent}; get it with: osa data fetch {known.name}")
    return read_npz(path)


def _digits() -> LabelledImages:
    require("The digits data set", "sklearn", extra="train")
    from sklearn.datasets import load_digits

    digits = load_digits()
    return check_images(digits.images, digits.target)


def _prepare(name: str, train: LabelledImages, test: LabelledImages | None, names: tuple[str, ...]) -> Dataset:
    if test is None:
        train, test = _split(name, train)
    classes = count_classes(name, train.y, test.y)
    if names and len(names) < classes:
        raise DataError(f"{name}: there are {classes} classes, but class_names holds {len(names)}; name each of them.")
    classes = len(names) or classes  # a class without images may have a name nevertheless
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is reported below
        mean, std = _channel_statistics(train.x)
        if not np.isfinite(std).all():
            raise _beyond_float32(name)
        standardisation = Standardisation(_floats(mean), _floats(std), _pixel_range(train.x))
        x_train, x_test = (_standardise(name, part.x, standardisation) for part in (train, test))
    known = _fingerprint(train, test)
    return Dataset(name, x_train, train.y, x_test, test.y, classes, standardisation, known, names)


def _split(name: str, images: LabelledImages) -> tuple[LabelledImages, LabelledImages]:
    """Set a fifth aside for testing: the same fifth for every seed, so that seeds can be compared.

    RandomState, since its stream never changes; a Generator's may change between numpy versions.
    """
    count = len(images.y)
    held_out = max(1, round(count * TEST_FRACTION))
    if count < 2:
        raise DataError(f"{name} holds {count} image; at least 2 are needed, one to train on and one to test with.")
    order = np.random.RandomState(0).permutation(count)
    test, train = order[:held_out], order[held_out:]
    return LabelledImages(images.x[train], images.y[train]), LabelledImages(images.x[test], images.y[test])


def count_classes(name: str, train: NDArray[np.int64], test: NDArray[np.int64]) -> int:
    largest = int(max(train.max(), test.max()))
    total = len(train) + len(test)
    if largest == 0:
        raise DataError(f"{name}: every label is 0; at least two classes are needed.")
    if largest >= total:
        raise DataError(
            f"{name}: the label {largest} is too large for {total} samples; number the classes 0, 1, 2 and so on."
        )
    return largest + 1


def _channel_statistics(x: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mean = x.mean(axis=(0, 1, 2), dtype=np.float64)
    std = x.std(axis=(0, 1, 2), dtype=np.float64)
    # A constant channel (an opaque alpha, say) carries nothing; dividing by its zero would make NaN of it.
    return mean, np.where(std > 0, std, 1.0)


def _pixel_range(x: NDArray[Any]) -> tuple[float, float]:
    """Black and white: 0 and 255 for bytes, the extremes of the images for other types."""
    if x.dtype == np.uint8:
        return 0.0, 255.0
    low, high = float(x.min()), float(x.max())
    return (low, high) if low < high else (low, low + 1.0)


def _standardise(name: str, x: NDArray[Any], standardisation: Standardisation) -> NDArray[np.float32]:
    scaled = standardisation.standardise(x)
    if not np.isfinite(scaled).all():
        raise _beyond_float32(name)
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


def _beyond_float32(name: str) -> DataError:
    return DataError(f"{name}: the pixel values exceed the range of float32; scale them to about 1.")


def _floats(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _fingerprint(train: LabelledImages, test: LabelledImages) -> str:
    """A digest of all images and labels: a resumed run must not continue on other data."""
    digest = hashlib.sha256()
    for array in (train.x, train.y, test.x, test.y):
        digest.update(f"{array.shape}{array.dtype.str}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
