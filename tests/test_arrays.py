"""Arrays in files: any name and shape goes there and back, and only plain arrays are read."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from osa_runtime.arrays import read_arrays, write_npz
from osa_runtime.errors import InputError, StorageError

TYPES = st.sampled_from([np.float16, np.float32, np.float64, np.int64, np.uint8, np.bool_])
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20).filter(
    lambda name: not name.endswith(".npy")
)


@settings(max_examples=60)
@given(st.dictionaries(NAMES, hnp.arrays(TYPES, hnp.array_shapes(min_dims=0, min_side=0)), max_size=4))
def test_any_names_and_arrays_come_back(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, np.ndarray[Any, Any]]
) -> None:
    path = tmp_path_factory.mktemp("arrays") / "x.npz"
    write_npz(path, arrays)
    found = read_arrays(path)
    assert isinstance(found, dict)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array, equal_nan=array.dtype.kind == "f")


@pytest.mark.parametrize("name", ["file", "self", "allow_pickle", "kwds", "a/b", "../up", "x y", "モデル"])
def test_names_that_savez_stumbles_over(name: str, tmp_path: Path) -> None:
    write_npz(tmp_path / "x.npz", {name: np.arange(3)})
    with np.load(tmp_path / "x.npz") as found:
        assert found[name].tolist() == [0, 1, 2]
    assert list(tmp_path.iterdir()) == [tmp_path / "x.npz"]


def test_a_plain_array(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(2))
    assert np.array_equal(read_arrays(tmp_path / "x.npy"), np.eye(2))


def damaged(path: Path, kind: str) -> None:
    np.savez(path, x=np.arange(1000.0))
    content = path.read_bytes()
    if kind == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "flipped":
        path.write_bytes(content[:3000] + bytes([content[3000] ^ 255]) + content[3001:])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("no array")
    elif kind == "pickle":
        path.write_bytes(pickle.dumps({"x": 1}))
    elif kind == "objects":
        np.savez(path, x=np.array([{}], dtype=object))
    elif kind == "zip of text":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", "text")
    elif kind == "huge":
        header = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,), }"
        path.write_bytes(header.ljust(127) + b"\n")
    else:
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    "kind",
    ["truncated", "flipped", "empty", "text", "pickle", "objects", "zip of text", "huge", "folder"],
)
def test_what_is_no_array_is_an_error_with_the_name_of_the_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "données.npz"
    damaged(path, kind)
    with pytest.raises(InputError, match=r"données.npz (cannot be read as|holds)") as caught:
        read_arrays(path)
    assert "allow_pickle" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.npz cannot be read"):
        read_arrays(tmp_path / "none.npz")


def test_objects_are_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Object arrays"):
        write_npz(tmp_path / "x.npz", {"x": np.array([{}], dtype=object)})
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Cannot write"):
        write_npz(tmp_path / "file" / "x.npz", {"x": np.arange(3)})
