"""The spread of a model's answers when everything in it is changed by as much as rounding changes it.

A runtime is not at fault for a distance within that. The change is as large as what rounding adds up to, not an
infinitesimal one: where a model is chaotic, the answers move as far as they can, and no further.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.errors import OsaError

Array = NDArray[Any]
Outputs = Mapping[str, Array]

SAMPLES = 3


@dataclass(frozen=True)
class Spread:
    """The answers to one case without any change, and with several: ``changed`` holds those that could be computed."""

    unchanged: Outputs
    changed: Sequence[Outputs]

    @classmethod
    def of(cls, unchanged: Outputs, run: Callable[[int], Outputs]) -> Spread:
        """Measure the spread; ``run`` returns the answers after the change with a given seed."""
        changed = []
        for seed in range(SAMPLES):
            try:
                changed.append(run(seed))
            except OsaError:  # out of range after the change: there is nothing to learn from it
                continue
        return cls(unchanged, changed)


def moved(array: Array, amount: float, generator: np.random.Generator) -> Array:
    """Floating-point values changed by up to ``amount`` of themselves, in float64."""
    if array.dtype.kind != "f":
        return array
    return array.astype(np.float64) * (1 + amount * generator.uniform(-1, 1, array.shape))
