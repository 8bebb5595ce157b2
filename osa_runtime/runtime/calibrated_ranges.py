"""What the examples of a static quantisation reached: beyond it the model cuts values off, and says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osa_runtime.artifact import Manifest
from osa_runtime.runtime.input_checks import Array


class CalibratedRanges:
    """Empty for models that take whatever comes."""

    def __init__(self, manifest: Manifest | None) -> None:
        described = manifest.quantization if manifest else {}
        static = described.get("activations") == "static"
        self._ranges = _read(described.get("calibration")) if static else {}

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def beyond(self, arrays: Mapping[str, Array]) -> list[str]:
        """A sentence for each input that holds more or less than any example did."""
        found = []
        for name, (low, high) in self._ranges.items():
            array = arrays.get(name)
            if array is None or not array.size:
                continue
            least, most = float(array.min()), float(array.max())
            if least < low or most > high:
                found.append(
                    f"Input {name} holds values from {least:.4g} to {most:.4g}, but this model was quantised with "
                    f"examples from {low:.4g} to {high:.4g}: what lies beyond may be cut off. Quantise it with "
                    "examples like this, or use the artifact that it was made from."
                )
        return found


def _read(calibration: Any) -> dict[str, tuple[float, float]]:
    """Manifests come from anywhere; ranges that are none say nothing."""
    ranges = calibration.get("ranges") if isinstance(calibration, dict) else None
    pairs = ranges.items() if isinstance(ranges, dict) else ()
    return {name: (pair[0], pair[1]) for name, pair in pairs if _is_range(pair)}


def _is_range(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(end, (int, float)) for end in pair)
