"""The classification extension: the likeliest classes of each row, as strings ``value:index``."""

from __future__ import annotations

import struct

import numpy as np

from osa_runtime.serving.messages import Array
from osa_runtime.serving.refusals import BadRequest


def classify(name: str, values: Array, count: int) -> Array:
    """(rows, count) byte strings, the largest value first; equal values in the order of their classes."""
    if values.ndim < 2 or values.dtype.kind not in "fiu":
        raise BadRequest(f"Output {name} of shape {list(values.shape)} has no classes; leave classification out.")
    rows = values.reshape(len(values), -1)
    order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    texts = [[f"{rows[i, j]:f}:{j}".encode() for j in row] for i, row in enumerate(order)]
    return np.array(texts, dtype=object).reshape(order.shape)


def write_byte_strings(array: Array) -> bytes:
    """Each string after its length of 4 bytes."""
    return b"".join(struct.pack("<I", len(text)) + text for text in array.ravel())
