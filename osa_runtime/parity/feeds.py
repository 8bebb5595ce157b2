"""The inputs that a model is verified on: several sizes, and kinds of values that are hard in different ways.

random     standard normal values, or uniform ids
constant   every token alike
large      values 4 times as large, so that ‖S‖ grows about 16 times
mixed      a batch whose rows have very different magnitudes: none may disturb another
parallel   tokens that are dominated by what they have in common, so that Q and K are almost parallel and cancel in S
scaled f   random values times f
broken     NaN in one row, Inf in another
pixels     noise, as a recorded standardisation makes it of pixels; strokes: sparse drawings on black
padded …   what is padding, and what is in it (``masks``)
ids n      all ids in their order, from n on
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.artifact import TensorSpec
from osa_runtime.errors import InputError
from osa_runtime.parity.masks import MASK_KINDS, pad
from osa_runtime.parity.pictures import PICTURE_KINDS, pictures
from osa_runtime.parity.signature import Signature
from osa_runtime.parity.sizes import all_sizes

Array = NDArray[Any]

FLOAT_KINDS = ("random", "constant", "large", "mixed", "parallel")
ID_KINDS = ("random", "constant", "parallel")


@dataclass(frozen=True)
class Case:
    """One set of inputs."""

    kind: str
    sizes: dict[str, int]
    feeds: dict[str, Array]

    @property
    def name(self) -> str:
        return " ".join([self.kind, *(f"{axis}={size}" for axis, size in self.sizes.items())])


def sweep(
    signature: Signature,
    *,
    seed: int = 0,
    width: int | None = None,
    batches: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
) -> Iterator[Case]:
    """Random values at every size, the other kinds at one size that is neither 1 nor even.

    ``width`` is the size d of a head: lengths below and above 2d take different ways through the model.
    """
    sizes = all_sizes(signature, width, batches, lengths)
    for index, chosen in enumerate(sizes):
        yield Case("random", chosen, make_feeds(signature, "random", chosen, seed + index))
    middle = _middle(signature, sizes)
    for index, kind in enumerate(_kinds(signature)):
        yield Case(kind, middle, make_feeds(signature, kind, middle, seed + 1000 + index))


def make_feeds(signature: Signature, kind: str, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    try:
        feeds = {spec.name: _values(spec, signature, kind, sizes, generator) for spec in signature.inputs}
    except (MemoryError, ValueError) as error:  # numpy raises the second where a size is beyond 64 bits
        said = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
        raise InputError(f"Inputs of {said} do not fit into memory; ask for smaller sizes.") from error
    if signature.mask is not None and kind in MASK_KINDS:
        pad(feeds, signature.mask, kind, generator)
    return feeds


def _kinds(signature: Signature) -> list[str]:
    floats = any(spec.dtype.startswith("float") for spec in signature.inputs)
    kinds = [kind for kind in (FLOAT_KINDS if floats else ID_KINDS) if kind != "random"]
    return kinds + (["padded"] if signature.mask is not None else [])


def _middle(signature: Signature, sizes: Sequence[dict[str, int]]) -> dict[str, int]:
    """A batch of several rows, at a length from the middle of the sweep."""
    chosen, batch = dict(sizes[len(sizes) // 2]), signature.batch
    if batch is not None:
        chosen[batch] = max((size[batch] for size in sizes if size[batch] <= 3), default=chosen[batch])
    return chosen


def _values(
    spec: TensorSpec, signature: Signature, kind: str, sizes: Mapping[str, int], generator: np.random.Generator
) -> Array:
    shape = [axis if isinstance(axis, int) else sizes[axis] for axis in spec.shape]
    if spec.dtype == "bool":
        return np.ones(shape, bool)
    if kind in PICTURE_KINDS and spec.name in signature.pixels:
        return pictures(kind, shape, signature.pixels[spec.name], spec.dtype, generator)
    if spec.dtype.startswith("float"):
        with np.errstate(over="ignore"):  # beyond the type's range is one of the ranges to try
            return _floats(kind, shape, generator).astype(spec.dtype)
    limits = signature.values.get(spec.name, {})
    low, high = limits.get("min", 0), limits.get("max", 1)
    return _ids(kind, shape, low, high, generator).astype(spec.dtype)


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
