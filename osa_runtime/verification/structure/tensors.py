"""Two tensors that should be the same, bit by bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

ROUNDING = 4  # units in the last place of the largest value: folding in another version may round in another order


def tensor_difference(name: str, found: Array, expected: Array) -> str:
    """What is wrong with a tensor, for one whose bits differ."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{name} is {_kind(found)}, expected {_kind(expected)}"
    different = _bits(found) != _bits(expected)
    if not different.any():
        return f"{name} has the right values, but is stored in another way"
    first = np.unravel_index(int(np.argmax(different)), found.shape) if found.ndim else ()
    count = f"{int(different.sum())} of {found.size} values differ{'s' if different.sum() == 1 else ''}"
    at = f", at ({', '.join(map(str, first))})" if found.ndim else ""
    return f"{name}: {count}{at}: {found[first]!s}, expected {expected[first]!s}"


def missing_weights(found: Mapping[str, Array], expected: Mapping[str, Array]) -> list[str]:
    """The expected weights that are nowhere in ``found``, under whatever name and whichever way round."""
    wrong = []
    held = {array.tobytes() for array in found.values()} | {array.T.tobytes() for array in found.values()}
    for name, array in expected.items():
        if array.size < 2 or not _is_weight(array) or array.tobytes() in held:
            continue
        if any(_close(other, array) for other in found.values()):
            continue
        same = found.get(name)
        wrong.append(f"{name} is not among the weights" if same is None else tensor_difference(name, same, array))
    return wrong


def _is_weight(array: Array) -> bool:
    """Quantised ones, too; other whole numbers are shapes and indices."""
    return array.dtype.kind in "fV" or (array.dtype.itemsize == 1 and array.dtype.kind in "iu")


def _close(found: Array, expected: Array) -> bool:
    if found.dtype != expected.dtype or found.size != expected.size or expected.dtype.kind == "V":
        return False
    if expected.dtype.kind == "f":
        limit = ROUNDING * np.finfo(expected.dtype).eps * float(np.max(np.abs(expected), initial=0.0))
    else:
        found, expected, limit = found.astype(int), expected.astype(int), 1  # a tie may be rounded either way
    return any(
        other.shape == expected.shape and bool(np.all(np.abs(other - expected) <= limit)) for other in (found, found.T)
    )


def _bits(array: Array) -> Array:
    """NaN is equal to itself here, and -0 not to 0."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}") if array.dtype.kind in "fV" else array


def _kind(array: Array) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"
