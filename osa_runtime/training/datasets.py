"""Labelled images ready for training: read, checked, split, standardised, and with a fingerprint of their content.

In an ``.npz`` file ``x`` is (n, height, width) for grey or (n, height, width, channels) for colour images, of any
integer or float type; ``y`` holds n whole numbers, 0 to classes - 1. ``x_test`` and ``y_test`` are optional, and so is
``class_names``, a text for each class.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.environment import require
from osa_runtime.errors import DataError
from osa_runtime.pixels import Standardisation
from osa_runtime.training.catalogue import DIGITS, data_folder, find_known, local_copy

_UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, MemoryError)


@dataclasses.dataclass(frozen=True)
class LabelledImages:
    """Images (n, height, width, channels) as they were stored, and their labels (n,) as int64."""

    x: NDArray[Any]
    y: NDArray[np.int64]


def read_npz(path: Path) -> tuple[LabelledImages, LabelledImages | None]:
    """The training images and, if the file has them, the test images."""
    arrays = _load_arrays(path, _array_names)
    train = check_images(arrays["x"], arrays["y"], f"{path}: x", f"{path}: y")
    if "x_test" not in arrays:
        return train, None
    test = check_images(arrays["x_test"], arrays["y_test"], f"{path}: x_test", f"{path}: y_test")
    if test.x.shape[1:] != train.x.shape[1:]:
        raise DataError(
            f"{path}: images in x are {train.x.shape[1:]} but in x_test {test.x.shape[1:]}; make them equal."
        )
    return train, test


def read_class_names(path: Path) -> tuple[str, ...]:
    """A text for each class, where the file has them."""
    found = _load_arrays(path, lambda _, present: present & {"class_names"}).get("class_names")
    if found is None:
        return ()
    names = found.tolist() if found.ndim == 1 and found.dtype.kind == "U" else []
    if not all(names) or not names or len(set(names)) != len(names):
        raise DataError(f"{path}: class_names has type {found.dtype} and shape {found.shape}; expected distinct texts.")
    return tuple(names)


def _load_arrays(path: Path, choose: Callable[[Path, Set[str]], Iterable[str]]) -> dict[str, NDArray[Any]]:
    """Those that ``choose`` names among the arrays that are there; no others are read."""
    if not path.is_file():
        raise DataError(f"There is no file {path}; expected an .npz file with the arrays x and y.")
    try:
        with path.open("rb") as stream:
            # Pickled objects could run code, so they stay forbidden.
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array")
            return {name: archive[name] for name in choose(path, dict.fromkeys(archive.files).keys())}
    except _UNREADABLE as error:
        raise DataError(
            f"Cannot read {path} as .npz: {error or type(error).__name__}. Write it with numpy.savez(file, x=…, y=…)."
        ) from error


def _array_names(path: Path, present: Set[str]) -> list[str]:
    wanted = ["x", "y"]
    if {"x_test", "y_test"} & present:
        wanted += ["x_test", "y_test"]
    missing = [name for name in wanted if name not in present]
    if missing:
        raise DataError(
            f"{path} lacks the array {' and '.join(missing)}; it holds {', '.join(present) or 'nothing'}. "
            "Expected are x and y, and optionally x_test and y_test."
        )
    return wanted


def check_images(x: NDArray[Any], y: NDArray[Any], x_name: str = "x", y_name: str = "y") -> LabelledImages:
    """Check images and labels and bring the images to (n, height, width, channels)."""
    _check_image_array(x, x_name)
    check_labels(y, len(x), y_name, x_name)
    return LabelledImages(x[..., None] if x.ndim == 3 else x, y.astype(np.int64))


def _check_image_array(x: NDArray[Any], name: str) -> None:
    if x.ndim not in (3, 4) or 0 in x.shape:
        raise DataError(
            f"{name} has shape {x.shape}; expected (n, height, width) or (n, height, width, channels), none zero."
        )
    if x.ndim == 4 and x.shape[1] <= 4 < x.shape[3]:
        raise DataError(
            f"{name} has shape {x.shape}, which looks like channels first; expected (n, height, width, channels): "
            "use x.transpose(0, 2, 3, 1)."
        )
    if x.dtype.kind not in "buif":
        raise DataError(f"{name} has type {x.dtype}; expected integers (such as uint8) or floats.")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        image = int(np.argwhere(~np.isfinite(x))[0][0])
        raise DataError(f"{name} holds NaN or infinity, first in image {image}; remove or repair such images.")


def check_labels(y: NDArray[Any], images: int, name: str, x_name: str) -> None:
    if y.ndim != 1 or y.dtype.kind not in "ui":
        raise DataError(f"{name} has shape {y.shape} and type {y.dtype}; expected one whole number per image.")
    if len(y) != images:
        raise DataError(f"{name} has {len(y)} labels but {x_name} has {images} images; expected as many of each.")
    for label in (int(y.min()), int(y.max())):
        if not 0 <= label < 2**31:
            raise DataError(f"{name} holds the label {label}; number the classes 0, 1, 2 and so on.")


_TEST_FRACTION = 0.2


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
    classes = _count_classes(name, train, test)
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
    held_out = max(1, round(count * _TEST_FRACTION))
    if count < 2:
        raise DataError(f"{name} holds {count} image; at least 2 are needed, one to train on and one to test with.")
    order = np.random.RandomState(0).permutation(count)
    test, train = order[:held_out], order[held_out:]
    return LabelledImages(images.x[train], images.y[train]), LabelledImages(images.x[test], images.y[test])


def _count_classes(name: str, train: LabelledImages, test: LabelledImages) -> int:
    largest = int(max(train.y.max(), test.y.max()))
    total = len(train.y) + len(test.y)
    if largest == 0:
        raise DataError(f"{name}: every label is 0; at least two classes are needed.")
    if largest >= total:
        raise DataError(
            f"{name}: the label {largest} is too large for {total} images; number the classes 0, 1, 2 and so on."
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
