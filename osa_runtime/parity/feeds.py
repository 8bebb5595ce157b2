"""The inputs that a model is verified on: several sizes, and kinds of values that are hard in different ways.

random     standard normal values, or uniform ids
constant   every token alike
large      values 4 times as large, so that ‖S‖ grows about 16 times
mixed      a batch whose rows have very different magnitudes: none may disturb another
parallel   tokens that are dominated by what they have in common, so that Q and K are almost parallel and cancel in S
padded     sequences of different lengths, with rubbish in the padding
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.artifact import TensorSpec
from osa_runtime.errors import InputError
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
    if signature.mask is not None and kind == "padded":
        _pad(feeds, signature.mask, generator)
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
    if spec.dtype.startswith("float"):
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
    if kind == "mixed" and shape:
        return noise * np.logspace(-2, 0.5, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    return noise


def _ids(kind: str, shape: Sequence[int], low: int, high: int, generator: np.random.Generator) -> NDArray[np.int64]:
    if kind in ("constant", "parallel"):
        ids = np.full(shape, low, np.int64)
        if kind == "parallel" and shape:
            ids[..., -1] = high
        return ids
    return generator.integers(low, high, shape, endpoint=True)


def _pad(feeds: dict[str, Array], mask: str, generator: np.random.Generator) -> None:
    """Rows of different lengths, the first full, the last of one token; what is in the padding must not matter."""
    batch, length = feeds[mask].shape[0], feeds[mask].shape[-1]
    counts = np.linspace(length, 1, max(batch, 2))[:batch].round().astype(int) if batch > 1 else np.array([length // 2])
    real = np.arange(length) < np.maximum(counts, 1)[:, None]
    feeds[mask] = np.ascontiguousarray(
        np.broadcast_to(real.reshape(batch, *[1] * (feeds[mask].ndim - 2), length), feeds[mask].shape)
    )
    for name, array in feeds.items():
        if name != mask and array.dtype.kind == "f" and array.shape[:2] == (batch, length):
            rubbish = 50.0 * generator.standard_normal(array.shape)
            kept = real.reshape(batch, length, *[1] * (array.ndim - 2))
            feeds[name] = np.where(kept, array, rubbish).astype(array.dtype)
