"""Whether inputs fit a model, without saying why not: the ordinary case in a few microseconds.

What does not pass here goes to the full check, whose messages say what is wrong; whatever passes here passes there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from osa_runtime.interface import ANY_DTYPE, ANY_SHAPE, Interface


class QuickCheck:
    def __init__(self, interface: Interface) -> None:
        known = all(spec.dtype != ANY_DTYPE and spec.shape != ANY_SHAPE for spec in interface.inputs)
        specs = interface.inputs if known else ()
        self._specs = [(spec.name, np.dtype(spec.dtype), len(spec.shape), spec.shape) for spec in specs]
        self._ranges = {
            name: (max(1, limits.get("min", 1)), limits.get("max")) for name, limits in interface.axes.items()
        }

    def passes(self, feeds: Mapping[str, Any]) -> bool:
        if type(feeds) is not dict or len(feeds) != len(self._specs):
            return False
        sizes: dict[str, int] = {}
        for name, dtype, rank, expected in self._specs:
            array = feeds.get(name)
            if type(array) is not np.ndarray or array.dtype != dtype or array.ndim != rank:
                return False
            for size, axis in zip(array.shape, expected, strict=True):
                if type(axis) is int:
                    if size != axis:
                        return False
                elif size == 0 or sizes.setdefault(axis, size) != size:  # type: ignore[arg-type]
                    return False
        for name, (least, most) in self._ranges.items():
            size = sizes.get(name, least)
            if size < least or (most is not None and size > most):
                return False
        return bool(self._specs)
