"""A picture file as the input of an image model: decoded, converted, resized, standardised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.artifact import TensorSpec
from osa_runtime.errors import InputError, MissingDependencyError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def read_picture(path: Path, spec: TensorSpec, mean: float | None, std: float | None) -> tuple[NDArray[Any], str]:
    """(1, channels, height, width) of the input's type, and a sentence on what was done."""
    channels, height, width = spec.shape[1:]
    if not isinstance(height, int) or not isinstance(width, int) or channels not in MODES:
        raise InputError(f"{path} is a picture, which the input {spec} cannot take; give an array as .npy.")
    pixels, size = _decode(path, MODES[int(channels)], (width, height))
    used_mean, used_std, whose = _standard(pixels, mean, std)
    note = (
        f"{path.name}: {MODES[int(channels)]}, {size[0]}×{size[1]} resized to {width}×{height}, scaled to 0…1, "
        f"then (pixel - {used_mean:.4g}) / {used_std:.4g}, {whose}"
    )
    scaled = (pixels.reshape(height, width, int(channels)) - used_mean) / used_std
    return scaled.transpose(2, 0, 1)[None].astype(spec.dtype), note


def _decode(path: Path, mode: str, size: tuple[int, int]) -> tuple[NDArray[np.float64], tuple[int, int]]:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError(
            "Reading pictures needs Pillow, which is not installed; run: pip install pillow, or give an array as .npy."
        ) from error
    try:
        with Image.open(path) as image:
            before = image.size
            resized = image.convert(mode).resize(size, Image.Resampling.BILINEAR)
            return np.asarray(resized, dtype=np.float64) / 255.0, before
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as a picture: {error}") from error


def _standard(pixels: NDArray[np.float64], mean: float | None, std: float | None) -> tuple[float, float, str]:
    if (mean is None) != (std is None):
        raise InputError("--mean and --std go together; give both or neither.")
    if mean is None or std is None:
        # A picture of one colour has no spread; dividing by its zero would make NaN of it.
        return float(pixels.mean()), float(pixels.std()) or 1.0, "the picture's own mean and deviation"
    if not std > 0:
        raise InputError(f"--std is {std}, expected a number above 0.")
    return mean, std, "as --mean and --std say"
