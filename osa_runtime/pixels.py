"""The standardisation of pixels that an image model was trained on. Nothing here needs torch."""

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
        return f"{low:g}…{high:g}, " + ("as they are" if self.is_identity else f"then (pixel - {mean}) / {std}")

    @property
    def is_identity(self) -> bool:
        return set(self.mean) == {0.0} and set(self.std) == {1.0}

    @property
    def of_bytes(self) -> Standardisation:
        """The same for pixels in bytes: in their own units where these are whole numbers, as 0…16, else 0…255."""
        low, high = map(float, self.pixels)
        if low >= 0 and 1 < high <= 255 and low.is_integer() and high.is_integer():
            # Training images need not contain white: above 127 the range is taken for that of bytes, below for its own.
            return Standardisation(self.mean, self.std, (0.0, 255.0 if high > 127 else high))
        unit = 255.0 / (high - low)
        return Standardisation(
            tuple((mean - low) * unit for mean in self.mean), tuple(std * unit for std in self.std), (0.0, 255.0)
        )

    @property
    def undone(self) -> Standardisation:
        """The rest for clients of a model that standardises by itself: only the range."""
        return Standardisation((0.0,) * len(self.mean), (1.0,) * len(self.std), self.pixels)

    def apply(self, picture: NDArray[Any]) -> NDArray[Any]:
        """Convert a picture (height, width, channels) in 0…1 to the model's units."""
        low, high = self.pixels
        stored: NDArray[Any] = low + picture * (high - low)
        return (stored - np.array(self.mean)) / np.array(self.std)

    def standardise(self, stored: NDArray[Any]) -> NDArray[np.float32]:
        """Standardise images (…, channels) in the units of ``pixels`` as in training, in float32."""
        mean, std = (np.array(numbers).astype(np.float32) for numbers in (self.mean, self.std))
        scaled: NDArray[np.float32] = (stored.astype(np.float32) - mean) / std
        return scaled

    def inputs(self, picture: NDArray[Any], dtype: str) -> NDArray[Any]:
        """``apply``, in the type of the model's input: whole numbers are rounded to."""
        applied = self.apply(picture)
        return (applied if np.dtype(dtype).kind == "f" else np.rint(applied)).astype(dtype)

    def as_dict(self) -> dict[str, Any]:
        return {"formula": FORMULA, "mean": list(self.mean), "std": list(self.std), "pixels": list(self.pixels)}

    @classmethod
    def from_dict(cls, fields: Any) -> Standardisation:
        """Read the result of ``as_dict``. Raises ValueError for anything else."""
        if not isinstance(fields, dict) or fields.get("formula") != FORMULA:
            raise ValueError(f"preprocessing must have the formula {FORMULA!r}, with mean, std and pixels")
        lists = [fields.get(name) for name in ("mean", "std", "pixels")]
        if not all(isinstance(numbers, list) for numbers in lists):
            raise ValueError("mean, std and pixels of preprocessing must be lists of numbers")
        mean, std, pixels = map(tuple, lists)  # type: ignore[arg-type]  # lists, as was checked
        return cls(mean, std, pixels)


def _text(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers)
