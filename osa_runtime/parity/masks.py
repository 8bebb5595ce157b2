"""Which tokens are real: padding at the right, at the left, between, everywhere; and rubbish in it, NaN too.

padded     sequences of different lengths, as tokenisers make them
left       the same with the padding in front
first      the first token alone is padding
holes      padding between real tokens
poisoned   holes with NaN in them, for inputs that are numbers
empty      one row has no real token at all
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MASK_KINDS = ("padded", "left", "first", "holes", "poisoned", "empty")


def pad(feeds: dict[str, Array], mask: str, kind: str, generator: np.random.Generator) -> None:
    """Set the mask, and fill the padding with what must not matter."""
    batch, length = feeds[mask].shape[0], feeds[mask].shape[-1]
    real = _real(kind, batch, length, generator)
    feeds[mask] = np.ascontiguousarray(
        np.broadcast_to(real.reshape(batch, *[1] * (feeds[mask].ndim - 2), length), feeds[mask].shape)
    )
    for name, array in feeds.items():
        if name != mask and array.dtype.kind == "f" and array.shape[:2] == (batch, length):
            rubbish = 50.0 * generator.standard_normal(array.shape)
            kept = real.reshape(batch, length, *[1] * (array.ndim - 2))
            filling = np.full(array.shape, np.nan) if kind == "poisoned" else rubbish
            feeds[name] = np.where(kept, array, filling).astype(array.dtype)


def _real(kind: str, batch: int, length: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """(batch, length), with a real token in every row but the empty one."""
    if kind in ("padded", "left"):
        real = np.arange(length) < _counts(batch, length)[:, None]
        return real if kind == "padded" else real[:, ::-1]
    real = np.ones((batch, length), bool)
    if kind == "first":
        real[:, 0] = length == 1
    elif kind == "empty":
        real[-1] = False
    else:
        real[:, 1:-1] = generator.random((batch, max(length - 2, 0))) < 0.5
    return real


def _counts(batch: int, length: int) -> NDArray[np.int64]:
    """The first row full, the last of one token."""
    counts = np.linspace(length, 1, max(batch, 2))[:batch].round().astype(int) if batch > 1 else np.array([length // 2])
    return np.maximum(counts, 1)
