"""Reading labelled images from an ``.npz`` file, and refusing what cannot be trained on.

The convention: ``x`` is (n, height, width) for grey or (n, height, width, channels) for colour images, of any integer
or float type; ``y`` holds n whole numbers, 0 to classes - 1. ``x_test`` and ``y_test`` are optional, and so is
``class_names``, a text for each class.
"""

from __future__ import annotations

import dataclasses
import zipfile
import zlib
from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.errors import DataError

_UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, MemoryError)


@dataclasses.dataclass(frozen=True)
class LabelledImages:
    """Images (n, height, width, channels) as they were stored, and their labels (n,) as int64."""

    x: NDArray[Any]
    y: NDArray[np.int64]


def read_npz(path: Path) -> tuple[LabelledImages, LabelledImages | None]:
    """The training images and, if the file has them, the test images."""
    arrays = load_arrays(path, _array_names)
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
    found = load_arrays(path, lambda _, present: present & {"class_names"}).get("class_names")
    if found is None:
        return ()
    names = found.tolist() if found.ndim == 1 and found.dtype.kind == "U" else []
    if not all(names) or not names or len(set(names)) != len(names):
        raise DataError(f"{path}: class_names has type {found.dtype} and shape {found.shape}; expected distinct texts.")
    return tuple(names)


def load_arrays(path: Path, choose: Callable[[Path, Set[str]], Iterable[str]]) -> dict[str, NDArray[Any]]:
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
