"""Tensors as raw bytes: little-endian, row by row. They are views of the message, not copies."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from osa_runtime.serving.datatypes import DTYPES
from osa_runtime.serving.messages import Array
from osa_runtime.serving.refusals import BadRequest

LITTLE = sys.byteorder == "little"


def read_binary_tensor(
    name: str, buffer: bytes | bytearray, datatype: str, shape: tuple[int, ...], start: int = 0, size: int | None = None
) -> Array:
    dtype = DTYPES[datatype]
    count = math.prod(shape)
    given = len(buffer) - start if size is None else size
    if given != count * dtype.itemsize:
        raise BadRequest(
            f"Input {name} has {given} bytes of data, expected {count * dtype.itemsize} "
            f"for {datatype} of shape {list(shape)}."
        )
    if dtype.kind == "b":
        _check_bools(name, buffer, start, count)
    return np.frombuffer(buffer, dtype, count, start).reshape(shape)


def write_binary_tensor(array: Array) -> bytes:
    return array.tobytes() if LITTLE else array.astype(array.dtype.newbyteorder("<")).tobytes()


def _check_bools(name: str, buffer: Any, start: int, count: int) -> None:
    # numpy takes any byte for a bool, and other code then sees values that are neither true nor false
    if count and np.frombuffer(buffer, np.uint8, count, start).max() > 1:
        raise BadRequest(f"Input {name} is BOOL and holds bytes other than 0 and 1.")
