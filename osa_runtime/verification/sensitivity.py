"""How much a model amplifies a rounding of its inputs: what no runtime can be blamed for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from osa_runtime.parity.metrics import TINY
from osa_runtime.verification.inside.insides import Array

SAMPLES = 3


def sensitivity(
    run: Callable[[Mapping[str, Array]], Mapping[str, Array]], feeds: Mapping[str, Array], name: str, eps: float
) -> float:
    """The relative change of one output when every input value changes by up to eps of itself; the worst of a few."""
    baseline = run(feeds)[name].astype(np.float64)
    changes = []
    for seed in range(SAMPLES):
        generator = np.random.default_rng(seed)
        moved = {key: _moved(array, eps, generator) for key, array in feeds.items()}
        changes.append(float(np.max(np.abs(run(moved)[name].astype(np.float64) - baseline))))
    return max(changes) / max(float(np.max(np.abs(baseline))), TINY)


def _moved(array: Array, eps: float, generator: np.random.Generator) -> Array:
    if array.dtype.kind != "f":
        return array
    return array.astype(np.float64) * (1 + eps * generator.uniform(-1, 1, array.shape))
