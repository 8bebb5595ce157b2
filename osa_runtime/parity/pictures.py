"""Pictures as a recorded standardisation makes them of pixels: noise over the whole range, and sparse strokes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.pixels import Standardisation

PICTURE_KINDS = ("pixels", "strokes")
STROKES = 3


def pictures(
    kind: str, shape: Sequence[int], pixels: Standardisation, dtype: str, generator: np.random.Generator
) -> NDArray[Any]:
    """(batch, channels, height, width), or one picture without a batch."""
    *rows, channels, height, width = shape
    count = int(np.prod(rows, dtype=int))
    plain = generator.random((count, height, width, channels))
    if kind == "strokes":
        plain[:] = np.array([_strokes(height, width, generator) for _ in range(count)])[..., None]
    standardised = [pixels.inputs(picture, dtype).transpose(2, 0, 1) for picture in plain]
    return np.array(standardised).reshape(shape)


def _strokes(height: int, width: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """A few walks of a pen on black: most pixels stay black, as in handwriting."""
    picture = np.zeros((height, width))
    for _ in range(STROKES):
        y, x = generator.integers(height), generator.integers(width)
        for step in generator.integers(-1, 2, (max(height, width), 2)):
            picture[y, x] = max(picture[y, x], generator.uniform(0.5, 1.0))
            y, x = np.clip(y + step[0], 0, height - 1), np.clip(x + step[1], 0, width - 1)
    return picture
