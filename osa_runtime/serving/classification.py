"""The classification extension: the likeliest classes of each row, as strings ``value:index`` (``:name``)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from osa_runtime.serving.messages import Array
from osa_runtime.serving.refusals import BadRequest


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
