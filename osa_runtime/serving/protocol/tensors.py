"""Element types under the protocol's names and numpy's, and tensors as raw bytes: little-endian, row by row. They are
views of the message, not copies.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from osa_runtime.serving.engine.messages import Array
from osa_runtime.serving.refusals import BadRequest

NUMPY_NAMES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
# Tensors travel in little-endian order whatever the machine.
DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(numpy).newbyteorder("<") for name, numpy in NUMPY_NAMES.items()}
PROTOCOL_NAMES = {numpy: name for name, numpy in NUMPY_NAMES.items()}
NAME_OF_DTYPE: dict[np.dtype[Any], str] = {np.dtype(numpy): name for name, numpy in NUMPY_NAMES.items()}
BYTES = "BYTES"


LITTLE = sys.byteorder == "little"


def read_binary_tensor(
    name: str,
    buffer: bytes | bytearray | memoryview,
    datatype: str,
    shape: tuple[int, ...],
    start: int = 0,
    size: int | None = None,
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


def classify(name: str, values: Array, count: int, labels: Sequence[str] = ()) -> Array:
    """(rows, count) byte strings, the largest value first; equal values in the order of their classes."""
    if values.ndim < 2 or values.dtype.kind not in "fiu":
        raise BadRequest(f"Output {name} of shape {list(values.shape)} has no classes; leave classification out.")
    rows = values.reshape(len(values), -1)
    order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    known = len(labels) == rows.shape[1]
    called = [f"{j}:{labels[j]}" if known else str(j) for j in range(rows.shape[1])]
    texts = [[f"{rows[i, j]:f}:{called[j]}".encode() for j in row] for i, row in enumerate(order)]
    return np.array(texts, dtype=object).reshape(order.shape)


def write_byte_strings(array: Array) -> bytes:
    """Each string after its length of 4 bytes."""
    return b"".join(struct.pack("<I", len(text)) + text for text in array.ravel())
