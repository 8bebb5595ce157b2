"""Inputs that Triton runs before it calls a model ready, so that no client pays for the first run.

They lie as raw bytes in the folder ``warmup``, one file per input. Zeros or random bytes, which Triton could make
itself, would be ids that the model does not know and masks without any token.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.artifact import Manifest, TensorSpec

FOLDER = "warmup"
LENGTH = 16  # of every dynamic axis but the batch, where the model takes so many

Feeds = dict[str, NDArray[Any]]


def sample_feeds(manifest: Manifest, batch_axis: str | None) -> Feeds:
    """One row of values as the model expects them: normal numbers, ids that it knows, and only real tokens."""
    generator = np.random.default_rng(0)
    return {spec.name: _values(spec, manifest, batch_axis, generator) for spec in manifest.inputs}


def _values(
    spec: TensorSpec, manifest: Manifest, batch_axis: str | None, generator: np.random.Generator
) -> NDArray[Any]:
    shape = [_size(axis, manifest.axes, 1 if axis == batch_axis else LENGTH) for axis in spec.shape]
    if spec.dtype == "bool":
        return np.ones(shape, bool)
    if spec.dtype.startswith("float"):
        return generator.standard_normal(shape).astype(spec.dtype)
    known = manifest.values.get(spec.name, {})
    return generator.integers(known.get("min", 0), known.get("max", 1), shape, spec.dtype, endpoint=True)


def _size(axis: int | str, axes: Mapping[str, Mapping[str, int]], wanted: int) -> int:
    if isinstance(axis, int):
        return axis
    limits = axes.get(axis, {})
    return max(limits.get("min", 1), min(wanted, limits.get("max", wanted)))


def write_samples(folder: Path, feeds: Feeds) -> dict[str, str]:
    """The file of each input, by number: the name of an input need not be one that a file can have."""
    folder.mkdir()
    names = {name: f"input{number}" for number, name in enumerate(feeds)}
    for name, file in names.items():
        array = feeds[name]
        (folder / file).write_bytes(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    return names
