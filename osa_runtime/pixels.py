"""How pixels become what an image model was trained on. Nothing here needs torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Standardisation"]

FORMULA = "(pixel - mean) / std"


@dataclass(frozen=True)
class Standardisation:
    """``mean`` and ``std`` per channel, in units of the pixels that the model was trained on; ``pixels`` is their
    range, from black to white."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    pixels: tuple[float, float]

    def __post_init__(self) -> None:
        numbers = (*self.mean, *self.std, *self.pixels)
        if not self.mean or len(self.mean) != len(self.std) or len(self.pixels) != 2:
            raise ValueError("mean and std need a number for each channel, pixels the lowest and the highest")
        if not all(isinstance(number, (int, float)) and math.isfinite(number) for number in numbers):
            raise ValueError("mean, std and pixels must be finite numbers")
        if min(self.std) <= 0 or self.pixels[0] >= self.pixels[1]:
            raise ValueError("std must be above 0, and pixels the lower number first")

    def __str__(self) -> str:
        (low, high), mean, std = self.pixels, _text(self.mean), _text(self.std)
        return f"{low:g}…{high:g}, then (pixel - {mean}) / {std}"

    def apply(self, picture: NDArray[Any]) -> NDArray[Any]:
        """A picture (height, width, channels) in 0…1, as the model wants it."""
        low, high = self.pixels
        stored: NDArray[Any] = low + picture * (high - low)
        return (stored - np.array(self.mean)) / np.array(self.std)

    def as_dict(self) -> dict[str, Any]:
        return {
            "formula": FORMULA,
            "mean": list(self.mean),
            "std": list(self.std),
            "pixels": list(self.pixels),
        }

    @classmethod
    def from_dict(cls, fields: Any) -> Standardisation:
        """Raises ValueError for what ``as_dict`` cannot have written."""
        if not isinstance(fields, dict) or fields.get("formula") != FORMULA:
            raise ValueError(f"preprocessing must have the formula {FORMULA!r}, with mean, std and pixels")
        lists = [fields.get(name) for name in ("mean", "std", "pixels")]
        if not all(isinstance(numbers, list) for numbers in lists):
            raise ValueError("mean, std and pixels of preprocessing must be lists of numbers")
        mean, std, pixels = map(tuple, lists)  # type: ignore[arg-type]  # lists, as was checked
        return cls(mean, std, pixels)


def _text(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers)
