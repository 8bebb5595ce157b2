"""How errors are spread over the values of all outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class ErrorHistogram:
    """Counts of |artifact − reference| relative to the largest reference value, by decade."""

    LOWEST, HIGHEST = -12, 1

    def __init__(self) -> None:
        self.edges = np.arange(self.LOWEST, self.HIGHEST + 0.25, 0.25)
        self.counts = np.zeros(len(self.edges) - 1, np.int64)

    def add(self, actual: NDArray[Any], expected: NDArray[Any]) -> None:
        a, b = actual.astype(np.float64), expected.astype(np.float64)
        if a.shape != b.shape or not a.size or not np.isfinite(a).all() or not np.isfinite(b).all():
            return
        relative = np.abs(a - b) / max(float(np.abs(b).max()), 1e-300)
        logs = np.log10(np.maximum(relative, 10.0**self.LOWEST))
        self.counts += np.histogram(np.clip(logs, self.LOWEST, self.HIGHEST - 1e-9), self.edges)[0]

    def as_dict(self) -> dict[str, list[float]]:
        return {"log10_edges": self.edges.tolist(), "counts": self.counts.tolist()}
