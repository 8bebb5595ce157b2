"""Tensors as JSON: lists, flat or nested. Nothing is cast that would lose or invent a value.

The values are counted in the text before any of them is read, and some thousand are read at a time: a text of the wrong
length costs nothing, and other threads can run in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from osa_runtime.serving.engine.messages import Array
from osa_runtime.serving.protocol.tensors import NUMPY_NAMES
from osa_runtime.serving.refusals import BadRequest

PIECE = 128 << 10  # bytes of text that are read at a time
BRACKETS = b"[]"
SPACE = b" \t\r\n"
NO_STRUCTURE = bytes(set(range(256)) - set(b"[],"))
LISTS: dict[str, msgspec.json.Decoder[Any]] = {
    "b": msgspec.json.Decoder(list[bool]),
    "f": msgspec.json.Decoder(list[float]),
    "i": msgspec.json.Decoder(list[int]),
    "u": msgspec.json.Decoder(list[int]),
}
RANGES = {
    dtype: (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if dtype.kind in "iu"
    else (float(np.finfo(dtype).min), float(np.finfo(dtype).max))
    for dtype in map(np.dtype, NUMPY_NAMES.values())
    if dtype.kind != "b"
}
WORDS = {"b": "true and false", "f": "numbers", "i": "whole numbers", "u": "whole numbers"}


def read_json_tensor(name: str, data: memoryview, datatype: str, shape: tuple[int, ...]) -> Array:
    """``data`` is the text of the values."""
    target, total = np.dtype(NUMPY_NAMES[datatype]), math.prod(shape)
    if bytes(data[:1]) != b"[":
        raise _wrong_type(name, datatype, target)
    empty = _check_structure(name, data, shape)
    result = np.empty(total, target)
    start = 0
    for piece in () if empty else _pieces(data):
        try:
            values = LISTS[target.kind].decode(b"[%b]" % piece.translate(None, BRACKETS))
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise _wrong_type(name, datatype, target) from error
        if start + len(values) > total:
            break
        result[start : start + len(values)] = _cast(name, values, target)
        start += len(values)
    else:
        if start == total:
            return result.reshape(shape)
    raise _wrong_count(name, start, shape)


def _check_structure(name: str, data: memoryview, shape: tuple[int, ...]) -> bool:
    """True if there are no values. Commas and brackets alone determine their number and the lists that hold them."""
    found = _without(data, NO_STRUCTURE)
    total = math.prod(shape)
    flat = found == b"[" + b"," * (total - 1) + b"]"
    if flat and total:
        return False
    count = found.count(b",") + 1 if len(data) > 2 else 0
    if total and count != total:
        raise _wrong_count(name, count, shape)
    size = 0
    for axis in reversed(shape):
        size = axis * size + max(axis - 1, 0) + 2
    if not flat and (len(found) != size or found != _nested(shape)):
        raise BadRequest(f"Input {name} cannot be read from its data: its lists are neither flat nor of its shape.")
    return not total and not _without(data, SPACE + b"[],")


def _without(data: memoryview, unwanted: bytes) -> bytes:
    starts = range(0, len(data), PIECE)
    return b"".join([bytes(data[start : start + PIECE]).translate(None, unwanted) for start in starts])


def _nested(shape: tuple[int, ...]) -> bytes:
    text = b""
    for axis in reversed(shape):
        text = b"[" + (text + b",") * (axis - 1) + text * min(axis, 1) + b"]"
    return text


def _pieces(data: memoryview) -> Iterator[bytes]:
    """The text in parts that end before a comma; the commas in between are left out."""
    start = 0
    while start < len(data):
        piece = bytes(data[start : start + PIECE])
        if start + PIECE < len(data):
            end = piece.rfind(b",")
            if end < 0:
                raise BadRequest(f"The data has a value of more than {PIECE} bytes.")
            piece = piece[:end]
        yield piece
        start += len(piece) + 1


def _cast(name: str, values: list[Any], target: np.dtype[Any]) -> Array:
    if target.kind != "b" and values:
        least, most = RANGES[target]
        if min(values) < least or max(values) > most:
            raise BadRequest(f"Input {name} holds values outside {least}…{most}, the range of {target}.")
    return np.array(values, target)


def _wrong_count(name: str, count: int, shape: tuple[int, ...]) -> BadRequest:
    expected = math.prod(shape)
    return BadRequest(f"Input {name} has {count} values, expected {expected} for the shape {list(shape)}.")


def _wrong_type(name: str, datatype: str, target: np.dtype[Any]) -> BadRequest:
    return BadRequest(f"Input {name} holds values that are not {datatype}: expected {WORDS[target.kind]}.")
