"""The plan by which requests of one model share a batch: which axis grows, which is padded, what must be equal.

Requests are joined along the batch axis when it is the first one of every input and output. When the model has a
mask, sequences of different length are padded with zeros and the mask with False, which no other token sees; without
a mask only requests of equal sizes share a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.serving.engine.messages import Array

SHORT = 64  # sequences up to this length share a batch whatever their lengths
MAX_STRETCH = 2  # longer ones are padded to no more than this many times their length


class Extent(NamedTuple):
    """The sizes that decide which batch a request joins; with ``apart`` it has one of its own."""

    rows: int
    length: int = 0
    sizes: tuple[int, ...] = ()
    apart: bool = False

    def fits(self, other: Extent) -> bool:
        if self.apart or other.apart or self.sizes != other.sizes:
            return False
        if self.length == other.length:
            return True
        short, long = sorted((self.length, other.length))
        return long <= max(SHORT, MAX_STRETCH * short)


class BatchPlan:
    def __init__(self, interface: Interface) -> None:
        specs = (*interface.inputs, *interface.outputs)
        joined = all(spec.shape[:1] == (interface.batch,) for spec in specs)
        self.batch_axis = interface.batch if joined else None
        self.interface, self._inputs, self._outputs = interface, interface.inputs, interface.outputs
        self._mask = next((spec for spec in interface.inputs if spec.name == interface.mask), None)
        self._padded = self._padded_axis() if self.batch_axis else None
        self._free = [
            (spec.name, axis)
            for spec in interface.inputs
            for axis, name in enumerate(spec.shape)
            if isinstance(name, str) and name not in (self.batch_axis, self._padded)
        ]

    @property
    def can_batch(self) -> bool:
        return self.batch_axis is not None

    @property
    def has_one_shape(self) -> bool:
        """True if requests differ in their number of rows only, so that one takes about as long as another."""
        return self._padded is None and not self._free

    def _padded_axis(self) -> str | None:
        """The mask's own axis, where it appears once in each input that has it."""
        if self._mask is None or len(self._mask.shape) != 2 or not isinstance(self._mask.shape[1], str):
            return None
        name = self._mask.shape[1]
        return name if all(spec.shape.count(name) <= 1 for spec in (*self._inputs, *self._outputs)) else None

    def with_mask(self, feeds: dict[str, Array]) -> dict[str, Array]:
        """A request without a mask means that every token is real."""
        shape = self.interface.missing_mask(feeds) if self._mask is not None else None
        return feeds if shape is None else feeds | {str(self.interface.mask): np.ones(shape, bool)}

    def rows(self, feeds: Mapping[str, Array]) -> int:
        return next(iter(feeds.values())).shape[0] if self.can_batch else 1

    def extent(self, feeds: Mapping[str, Array]) -> Extent:
        rows = self.rows(feeds)
        length = feeds[self._mask.name].shape[1] if self._mask is not None and self._padded else 0
        free = self._free
        sizes = tuple([feeds[name].shape[axis] for name, axis in free if name in feeds]) if free else ()
        return Extent(rows, length, sizes)

    def join(self, parts: Sequence[Mapping[str, Array]], extents: Sequence[Extent]) -> dict[str, Array]:
        if len(parts) == 1:
            # the bytes of a message may start anywhere, and kernels want aligned arrays
            return {name: a if a.flags.aligned else a.copy() for name, a in parts[0].items()}
        longest = max(extent.length for extent in extents)
        if all(extent.length == longest for extent in extents):
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return {spec.name: self._pad(spec, [part[spec.name] for part in parts], longest) for spec in self._inputs}

    def _pad(self, spec: TensorSpec, arrays: Sequence[Array], longest: int) -> Array:
        if self._padded not in spec.shape:
            return np.concatenate(arrays)
        axis = spec.shape.index(self._padded)
        shape = list(arrays[0].shape)
        shape[0], shape[axis] = sum(len(array) for array in arrays), longest
        joined = np.zeros(shape, arrays[0].dtype)  # zero is False for the mask and a valid token for the others
        start = 0
        for array in arrays:
            place = [slice(None)] * array.ndim
            place[0], place[axis] = slice(start, start + len(array)), slice(array.shape[axis])
            joined[tuple(place)] = array
            start += len(array)
        return joined

    def split(self, outputs: Mapping[str, Array], extents: Sequence[Extent]) -> list[dict[str, Array]]:
        if len(extents) == 1:
            return [dict(outputs)]
        parts: list[dict[str, Array]] = []
        start = 0
        for extent in extents:
            stop = start + extent.rows
            parts.append({spec.name: self._cut(spec, outputs[spec.name][start:stop], extent) for spec in self._outputs})
            start = stop
        return parts

    def _cut(self, spec: TensorSpec, array: Array, extent: Extent) -> Array:
        if self._padded is None or self._padded not in spec.shape:
            return array
        place = [slice(None)] * array.ndim
        place[spec.shape.index(self._padded)] = slice(extent.length)
        return array[tuple(place)]
