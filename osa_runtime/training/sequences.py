"""Labelled sequences for training, from an ``.npz`` file.

``x`` is (n, N) whole numbers for token ids, or (n, N, features) floats; ``y`` holds n whole numbers, 0 to classes - 1.
``lengths`` (n) or ``mask`` (n, N), True for real tokens, say which tokens are real; without them all are. ``x_test``,
``y_test`` and ``lengths_test`` or ``mask_test`` are optional, otherwise a fixed fifth is set aside.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.errors import DataError
from osa_runtime.training.datasets import TEST_FRACTION, count_classes
from osa_runtime.training.npz import check_labels, load_arrays, read_class_names

Array = NDArray[Any]
LARGEST_VOCABULARY = 2**22


@dataclasses.dataclass(frozen=True)
class SequenceDataset:
    """Token ids (n, N) in int64 or vectors (n, N, features) in float32, masks (n, N), and labels (n,) in int64."""

    name: str
    x_train: Array
    y_train: NDArray[np.int64]
    mask_train: NDArray[np.bool_]
    x_test: Array
    y_test: NDArray[np.int64]
    mask_test: NDArray[np.bool_]
    classes: int
    sha256: str
    class_names: tuple[str, ...] = ()

    standardisation = None  # vectors are taken as they are

    @property
    def vocabulary(self) -> int | None:
        return None if self.x_train.ndim == 3 else int(max(self.x_train.max(), self.x_test.max())) + 1

    @property
    def features(self) -> int | None:
        return int(self.x_train.shape[2]) if self.x_train.ndim == 3 else None

    @property
    def max_length(self) -> int:
        return int(self.x_train.shape[1])

    @property
    def image_size(self) -> tuple[int, int]:
        """A token is a patch of one pixel, where a size is needed to choose defaults."""
        return self.max_length, 1

    @property
    def train_inputs(self) -> tuple[Array, ...]:
        return self.x_train, self.mask_train

    @property
    def test_inputs(self) -> tuple[Array, ...]:
        return self.x_test, self.mask_test


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Token ids (n, N) in int64 or vectors (n, N, features) in float32, labels (n,), and masks (n, N)."""

    x: Array
    y: NDArray[np.int64]
    mask: NDArray[np.bool_]

    def __getitem__(self, rows: Array) -> Sequences:
        return Sequences(self.x[rows], self.y[rows], self.mask[rows])


def load_sequences(file: str | os.PathLike[str]) -> SequenceDataset:
    path = Path(file)
    arrays = load_arrays(path, _names)
    train = check_sequences(path, arrays)
    if "x_test" in arrays:
        test = check_sequences(path, arrays, "_test")
        if test.x.shape[1:] != train.x.shape[1:] or test.x.dtype != train.x.dtype:
            raise DataError(
                f"{path}: x is {train.x.shape[1:]} {train.x.dtype} and x_test {test.x.shape[1:]} {test.x.dtype}."
            )
    else:
        order = np.random.RandomState(0).permutation(len(train.y))
        held_out = max(1, round(len(order) * TEST_FRACTION))
        if len(order) < 2:
            raise DataError(f"{path} holds {len(order)} sequence; at least 2 are needed, one of them to test with.")
        train, test = train[order[held_out:]], train[order[:held_out]]
    names = read_class_names(path)
    classes = count_classes(path.name, train.y, test.y)
    if names and len(names) < classes:
        raise DataError(f"{path}: there are {classes} classes, but class_names holds {len(names)}; name each of them.")
    parts = (train.x, train.y, train.mask, test.x, test.y, test.mask)
    return SequenceDataset(path.name, *parts, len(names) or classes, _fingerprint(parts), names)


def _names(path: Path, present: Set[str]) -> list[str]:
    wanted = ["x", "y"] + (["x_test", "y_test"] if {"x_test", "y_test"} & present else [])
    missing = [name for name in wanted if name not in present]
    if missing:
        raise DataError(f"{path} lacks {' and '.join(missing)}; it holds {', '.join(sorted(present)) or 'nothing'}.")
    return wanted + [name for name in ("lengths", "mask", "lengths_test", "mask_test") if name in present]


def check_sequences(path: Path, arrays: Mapping[str, Array], suffix: str = "") -> Sequences:
    """The sequences of a file, or those with the suffix "_test", with zeros in the padding."""
    x, y = arrays[f"x{suffix}"], arrays[f"y{suffix}"]
    name = f"{path}: x{suffix}"
    if x.ndim not in (2, 3) or 0 in x.shape or x.dtype.kind not in ("ui" if x.ndim == 2 else "f"):
        raise DataError(
            f"{name} has shape {x.shape} and type {x.dtype}; expected (n, tokens) whole numbers or (n, tokens, "
            "features) floats."
        )
    check_labels(y, len(x), f"{path}: y{suffix}", name)
    mask = _mask(path, arrays, suffix, x.shape[:2])
    if x.ndim == 2:
        x = np.where(mask, x, 0)  # padding may hold anything
        if x.min() < 0 or x.max() >= LARGEST_VOCABULARY:
            raise DataError(
                f"{name} holds the token {int(x.min() if x.min() < 0 else x.max())}; number tokens from 0 on, without "
                f"gaps: each has a row in a table, and there may be {LARGEST_VOCABULARY}."
            )
        return Sequences(x.astype(np.int64), y.astype(np.int64), mask)
    x = np.where(mask[..., None], x, 0.0).astype(np.float32)
    if not np.isfinite(x).all():
        raise DataError(f"{name} holds NaN, infinity or more than float32 can, first in sequence {_first(x)}.")
    return Sequences(x, y.astype(np.int64), mask)


def _first(x: Array) -> int:
    return int(np.argwhere(~np.isfinite(x))[0][0])


def _mask(path: Path, arrays: Mapping[str, Array], suffix: str, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    lengths, mask = arrays.get(f"lengths{suffix}"), arrays.get(f"mask{suffix}")
    if lengths is not None and mask is not None:
        raise DataError(f"{path} has both lengths{suffix} and mask{suffix}; expected one of them.")
    if lengths is not None:
        valid = lengths.shape == shape[:1] and lengths.dtype.kind in "ui"
        if not valid or lengths.min() < 1 or lengths.max() > shape[1]:
            values = (
                f", from {lengths.min()} to {lengths.max()}" if lengths.size and lengths.dtype.kind in "uif" else ""
            )
            raise DataError(
                f"{path}: lengths{suffix} has shape {lengths.shape} and type {lengths.dtype}{values}; expected "
                f"{shape[0]} whole numbers from 1 to {shape[1]}."
            )
        found: NDArray[np.bool_] = np.arange(shape[1]) < lengths[:, None]
        return found
    if mask is None:
        return np.ones(shape, bool)
    if mask.shape != shape or mask.dtype != np.bool_ or not mask.any(1).all():
        raise DataError(
            f"{path}: mask{suffix} has shape {mask.shape} and type {mask.dtype}; expected bool {shape}, with a real "
            "token in each sequence."
        )
    return mask


def _fingerprint(arrays: tuple[Array, ...]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape}{array.dtype.str}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
