"""Arrays in .npy and .npz files: read without ever running code from them, written in one step."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.atomic import atomic_file
from osa_runtime.errors import InputError

Array = NDArray[Any]

_UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, MemoryError)


def read_arrays(path: Path) -> Array | dict[str, Array]:
    """The array of an .npy file, or those of an .npz by name."""
    try:
        with path.open("rb") as stream:
            # Pickled objects could run code, so they are not allowed.
            content = np.load(stream, allow_pickle=False)
            found = {n: content[n] for n in content.files} if isinstance(content, np.lib.npyio.NpzFile) else content
    except _UNREADABLE as error:
        raise InputError(
            f"{path} cannot be read as .npy or .npz: {_reason(error)}. Write arrays with numpy.save or numpy.savez."
        ) from error
    # numpy returns the bytes of a member that is not an array.
    named = found.items() if isinstance(found, dict) else ()
    other = [name for name, array in named if not isinstance(array, np.ndarray)]
    if other:
        raise InputError(f"{path} holds {', '.join(other)}, which is not an array. Write arrays with numpy.savez.")
    return found


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write the same file as numpy.savez, for any names: savez takes them as keyword arguments, and has its own."""
    with atomic_file(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def _reason(error: BaseException) -> str:
    text = str(error).rstrip(".") or type(error).__name__
    return "it holds no plain array" if "pickle" in text else text  # numpy's text recommends unsafe loading
