"""Whether inputs fit a model, without saying why not: the ordinary case in a few microseconds.

What does not pass here goes to the full check of the runtime, whose messages say what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from osa_runtime.runtime.interface import Interface
from osa_runtime.serving.messages import Array


class QuickCheck:
    def __init__(self, interface: Interface) -> None:
        self._specs = [
            (spec.name, np.dtype(spec.dtype), len(spec.shape), tuple(enumerate(spec.shape)))
            for spec in interface.inputs
        ]
        self._ranges = {
            name: (max(1, limits.get("min", 1)), limits.get("max")) for name, limits in interface.axes.items()
        }

    def passes(self, feeds: Mapping[str, Array]) -> bool:
        if len(feeds) != len(self._specs):
            return False
        sizes: dict[str, int] = {}
        for name, dtype, rank, axes in self._specs:
            array = feeds.get(name)
            if array is None or array.dtype != dtype or array.ndim != rank:
                return False
            shape = array.shape
            for axis, expected in axes:
                size = shape[axis]
                if isinstance(expected, int):
                    if size != expected:
                        return False
                elif size == 0 or sizes.setdefault(expected, size) != size:
                    return False
        return all(self._within(name, sizes[name]) for name in self._ranges if name in sizes)

    def _within(self, name: str, size: int) -> bool:
        least, most = self._ranges[name]
        return least <= size and (most is None or size <= most)
