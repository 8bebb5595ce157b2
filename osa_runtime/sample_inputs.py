"""Inputs generated from a model's interface: for its first run, for benchmarks, and for verification.

random     standard normal values, uniform ids, every token real
constant   every token alike
large      values 4 times as large, so that ‖S‖ grows about 16 times
mixed      a batch whose rows have very different magnitudes: none may affect another
parallel   tokens with a dominant common part, so that Q and K are almost parallel and cancel in S
scaled f   random values times f
broken     NaN in one row, Inf in another
ids n      all ids in their order, from n on
pixels     noise, standardised as the manifest records
strokes    sparse drawings on black, standardised in the same way
padded     sequences of different lengths, as tokenisers make them, and rubbish in the padding
left       the same with the padding in front
first      the first token alone is padding
holes      padding between real tokens
poisoned   holes with NaN in them, for inputs that are numbers
empty      one row has no real token at all
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.errors import InputError
from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.pixels import Standardisation

Array = NDArray[Any]

FLOAT_KINDS = ("random", "constant", "large", "mixed", "parallel")
ID_KINDS = ("random", "constant", "parallel")
PICTURE_KINDS = ("pixels", "strokes")
MASK_KINDS = ("padded", "left", "first", "holes", "poisoned", "empty")
STROKES = 3  # in one picture


def usual_sizes(interface: Interface, rows: int = 1, length: int = 16) -> dict[str, int]:
    """A size for every dynamic axis, as near to these as the axis allows."""
    return {axis: interface.fitting(axis, rows if axis == interface.batch else length) for axis in interface.names}


def sample_inputs(
    interface: Interface, sizes: Mapping[str, int], kind: str = "random", seed: int = 0
) -> dict[str, Array]:
    """An array for each input."""
    generator = np.random.default_rng(seed)
    try:
        feeds = {spec.name: _values(spec, interface, kind, sizes, generator) for spec in interface.inputs}
    except (MemoryError, ValueError) as error:  # numpy raises the latter for a size beyond 64 bits
        said = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
        raise InputError(f"Inputs of {said} do not fit into memory; use smaller sizes.") from error
    if interface.mask is not None and kind in MASK_KINDS:
        _pad(feeds, interface.mask, kind, generator)
    return feeds


def _values(
    spec: TensorSpec, interface: Interface, kind: str, sizes: Mapping[str, int], generator: np.random.Generator
) -> Array:
    shape = spec.sized(sizes)
    if spec.dtype == "bool":
        return np.ones(shape, bool)
    if kind in PICTURE_KINDS and spec.name in interface.pixels:
        return _pictures(kind, shape, interface.pixels[spec.name], spec.dtype, generator)
    if spec.dtype.startswith("float"):
        with np.errstate(over="ignore"):  # values beyond the type's range are tested, too
            return _floats(kind, shape, generator).astype(spec.dtype)
    return _ids(kind, shape, *interface.ids(spec.name), generator).astype(spec.dtype)


def _floats(kind: str, shape: Sequence[int], generator: np.random.Generator) -> NDArray[np.float64]:
    noise = generator.standard_normal(shape)
    if kind == "constant":
        return np.ones(shape)
    if kind == "large":
        return 4.0 * noise
    if kind == "parallel":
        return 4.0 + 0.05 * noise
    if kind.startswith("scaled "):
        return float(kind.split()[1]) * noise
    if kind == "broken" and noise.size:
        rows = noise.reshape(shape[0] if shape else 1, -1)
        rows[0, rows.shape[1] // 2] = np.nan
        rows[1:2, 0] = np.inf
    if kind == "mixed" and shape:
        return noise * np.logspace(-2, 0.5, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    return noise


def _ids(kind: str, shape: Sequence[int], low: int, high: int, generator: np.random.Generator) -> NDArray[np.int64]:
    if kind in ("constant", "parallel"):
        ids = np.full(shape, low, np.int64)
        if kind == "parallel" and shape:
            ids[..., -1] = high
        return ids
    if kind.startswith("ids "):
        count = int(np.prod(shape, dtype=int))
        return (low + (int(kind.split()[1]) + np.arange(count)) % (high - low + 1)).reshape(shape)
    return generator.integers(low, high, shape, endpoint=True)


def _pictures(
    kind: str, shape: Sequence[int], pixels: Standardisation, dtype: str, generator: np.random.Generator
) -> Array:
    """(batch, channels, height, width), or one picture without a batch."""
    *rows, channels, height, width = shape
    count = int(np.prod(rows, dtype=int))
    plain = generator.random((count, height, width, channels))
    if kind == "strokes":
        plain[:] = np.array([_strokes(height, width, generator) for _ in range(count)])[..., None]
    standardised = [pixels.inputs(picture, dtype).transpose(2, 0, 1) for picture in plain]
    return np.array(standardised).reshape(shape)


def _strokes(height: int, width: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """A few pen strokes on black: most pixels stay black, as in handwriting."""
    picture = np.zeros((height, width))
    for _ in range(STROKES):
        y, x = generator.integers(height), generator.integers(width)
        for step in generator.integers(-1, 2, (max(height, width), 2)):
            picture[y, x] = max(picture[y, x], generator.uniform(0.5, 1.0))
            y, x = np.clip(y + step[0], 0, height - 1), np.clip(x + step[1], 0, width - 1)
    return picture


def _pad(feeds: dict[str, Array], mask: str, kind: str, generator: np.random.Generator) -> None:
    """Set the mask, and fill the padding with values that must not matter."""
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
    """A mask (batch, length) with a real token in every row except the empty one."""
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
    """The lengths of the rows: the first is full, the last has one token."""
    counts = np.linspace(length, 1, max(batch, 2))[:batch].round().astype(int) if batch > 1 else np.array([length // 2])
    return np.maximum(counts, 1)
