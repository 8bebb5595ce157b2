from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osa_runtime.errors import DataError
from osa_runtime.training import load_dataset

X = np.zeros((6, 4, 4), np.uint8)
Y = np.array([0, 1, 2, 0, 1, 2])


def with_nan() -> np.ndarray[Any, Any]:
    x = X.astype(np.float32)
    x[3, 1, 1] = np.nan
    return x


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        pytest.param({"x": X}, "lacks the array y; it holds x", id="no y"),
        pytest.param({"images": X, "labels": Y}, "lacks the array x and y", id="other names"),
        pytest.param({"x": X, "y": Y, "x_test": X}, "lacks the array y_test", id="half a test set"),
        pytest.param({"x": X, "y": Y[:5]}, "5 labels but .* 6 images", id="lengths differ"),
        pytest.param({"x": X, "y": Y.astype(float)}, "float64; expected one whole number", id="float labels"),
        pytest.param({"x": X, "y": np.eye(6, dtype=int)}, "expected one whole number", id="one-hot labels"),
        pytest.param({"x": X, "y": Y - 1}, "the label -1", id="negative label"),
        pytest.param({"x": X, "y": Y * 100}, "the label 200 is too large for 6 samples", id="labels with gaps"),
        pytest.param({"x": X, "y": Y.astype(np.uint64) + np.uint64(2**63)}, "holds the label 9", id="huge labels"),
        pytest.param({"x": X, "y": Y * 0}, "at least two classes", id="one class"),
        pytest.param({"x": X[:1], "y": Y[1:2]}, "at least 2 are needed", id="one image"),
        pytest.param({"x": X[:0], "y": Y[:0]}, r"shape \(0, 4, 4\)", id="no images"),
        pytest.param({"x": X.reshape(6, 16), "y": Y}, r"shape \(6, 16\); expected", id="flat images"),
        pytest.param({"x": np.zeros((6, 3, 8, 8)), "y": Y}, "channels first", id="channels first"),
        pytest.param({"x": X.astype(complex), "y": Y}, "complex128", id="complex images"),
        pytest.param({"x": X, "y": Y, "class_names": ["a", "b"]}, "3 classes, but class_names", id="few names"),
        pytest.param({"x": X, "y": Y, "class_names": ["a", "b", "a"]}, "distinct texts", id="a name twice"),
        pytest.param({"x": X, "y": Y, "class_names": [0, 1, 2]}, "distinct texts", id="names of numbers"),
        pytest.param({"x": with_nan(), "y": Y}, "NaN or infinity, first in image 3", id="NaN"),
        pytest.param({"x": np.full((6, 4, 4), 1e300), "y": Y}, "range of float32", id="beyond float32"),
        pytest.param({"x": X.astype(object), "y": Y}, "Cannot read .* as .npz: Object arrays", id="pickled objects"),
        pytest.param({"x": X, "y": Y, "x_test": X[:, :2], "y_test": Y}, "make them equal", id="sizes differ"),
    ],
)
def test_unusable_arrays_are_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=message):
        load_dataset(file=path)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"hello", id="text"),
        pytest.param(b"PK\x03\x04" * 9, id="broken zip"),
    ],
)
def test_files_that_are_no_npz_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"Cannot read .*mine\.npz as \.npz"):
        load_dataset(file=path)


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=X, y=Y)
    content = bytearray(path.read_bytes())
    content[200] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DataError, match="Cannot read"):
        load_dataset(file=path)


def test_a_single_array_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.npy"
    np.save(path, X)
    with pytest.raises(DataError, match=r"single array.*numpy\.savez"):
        load_dataset(file=path)


@pytest.mark.parametrize("name", ["absent.npz", "."], ids=["absent", "a folder"])
def test_a_path_without_a_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="There is no file"):
        load_dataset(file=tmp_path / name)


def test_names_of_classes_are_kept(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.arange(96).reshape(X.shape), y=Y, class_names=["cat", "dog", "ox", "none"])
    data = load_dataset(file=tmp_path / "data.npz")
    assert data.class_names == ("cat", "dog", "ox", "none")
    assert data.classes == 4
