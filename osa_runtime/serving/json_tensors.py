"""Tensors as JSON: lists, flat or nested. Nothing is cast that would lose or invent a value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from osa_runtime.serving.datatypes import DTYPES, NUMPY_NAMES
from osa_runtime.serving.messages import Array
from osa_runtime.serving.refusals import BadRequest, TooLarge

ACCEPTED = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}  # kinds of JSON values by kind of tensor
MAX_RANK = 16


def read_shape(name: str, shape: Any, datatype: Any, max_bytes: int) -> tuple[int, ...]:
    """The shape, refused before anything of its size is allocated."""
    if not isinstance(shape, list) or len(shape) > MAX_RANK:
        raise _bad_shape(name, shape)
    for size in shape:
        if type(size) is not int or size < 0:
            raise _bad_shape(name, shape)
        if size > max_bytes:  # also beside an empty axis, where the product says nothing
            raise TooLarge(f"Input {name} has an axis of {size} in {_short(shape)}, more than {max_bytes}.")
    dtype = DTYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        known = ", ".join(DTYPES)
        raise BadRequest(f"Input {name} has the datatype {_short(datatype)}, expected one of {known}.")
    total = math.prod(shape) * dtype.itemsize
    if total > max_bytes:
        raise TooLarge(f"Input {name} of shape {_short(shape)} takes {total} bytes, expected at most {max_bytes}.")
    return tuple(shape)


def read_json_tensor(name: str, data: Any, datatype: str, shape: tuple[int, ...]) -> Array:
    try:
        values = np.asarray(data)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequest(f"Input {name} cannot be read from its data: {error}.") from error
    if values.size == 0 and math.prod(shape) == 0:
        return np.zeros(shape, NUMPY_NAMES[datatype])
    target = np.dtype(NUMPY_NAMES[datatype])
    if values.dtype.kind not in ACCEPTED[target.kind]:
        raise BadRequest(f"Input {name} holds values that are not {datatype}: expected {_words(target.kind)}.")
    if values.size != math.prod(shape):
        raise BadRequest(
            f"Input {name} has {values.size} values, expected {math.prod(shape)} for the shape {list(shape)}."
        )
    return _cast(name, values, target).reshape(shape)


def _cast(name: str, values: Array, target: np.dtype[Any]) -> Array:
    if target.kind in "iu":
        bounds = np.iinfo(target)
        if values.min() < bounds.min or values.max() > bounds.max:
            raise BadRequest(f"Input {name} holds values outside {bounds.min}…{bounds.max}, the range of {target}.")
    with np.errstate(over="ignore"):
        result = values.astype(target)
    if target.kind == "f" and not np.isfinite(result).all():
        raise BadRequest(f"Input {name} holds values outside the range of {target}.")
    return result


def _bad_shape(name: str, shape: Any) -> BadRequest:
    return BadRequest(f"Input {name} has the shape {_short(shape)}, expected a list of whole numbers of at least 0.")


def _words(kind: str) -> str:
    return {"b": "true and false", "f": "numbers"}.get(kind, "whole numbers")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
