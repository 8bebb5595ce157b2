"""The IDX format of the MNIST family: a magic number, the sizes, then the bytes.

    0x00 0x00 0x08 ndim | ndim × uint32 big-endian | uint8 data, row-major

Only unsigned bytes (0x08) occur among the data sets known here.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from osa_runtime.errors import DataError

_UNSIGNED_BYTE = 0x08


def parse_idx(content: bytes, name: str) -> NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes; ``name`` is for the error message."""
    if len(content) < 4 or content[:3] != bytes([0, 0, _UNSIGNED_BYTE]):
        raise DataError(
            f"{name} is not an IDX file of unsigned bytes: it starts with {content[:4].hex() or 'nothing'}."
        )
    start = 4 + 4 * content[3]
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4))
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise DataError(
            f"{name} holds {len(content)} bytes, but its header {shape} asks for {expected}; fetch it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
