"""Sample pictures of a page, and where in a picture of that kind the strokes are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PER_CLASS = 3
INK = 0.1  # of the range; below it is paper
TYPICAL = 90  # percentile
TOUCHES = 0.9


@dataclass(frozen=True)
class DrawingPlacement:
    """The box that a drawing is scaled to, as a share of the picture.

    With ``stretch`` both sides are filled, as in scikit-learn's digits; otherwise the longer one, as in MNIST. With
    ``by_mass`` the ink's centre of mass is in the middle of the picture, as in MNIST; otherwise the box is.
    """

    width: float
    height: float
    stretch: bool
    by_mass: bool


def choose_samples(labels: NDArray[np.int64]) -> list[int]:
    """The first pictures of each class, by class."""
    found = (np.flatnonzero(labels == label)[:PER_CLASS] for label in np.unique(labels))
    return [int(index) for indices in found for index in indices]


def measure_placement(pictures: NDArray[Any]) -> DrawingPlacement | None:
    """The box around the ink in pictures (n, height, width) of 0…1; None if it is most of the picture, as in photos."""
    drawn = pictures[(pictures > INK).any((1, 2))]
    if not len(drawn):
        return None
    ink = drawn > INK
    (left, right), (top, bottom) = _ends(ink, 1), _ends(ink, 2)
    width, height = right - left, bottom - top
    box = float(np.percentile(width, TYPICAL)), float(np.percentile(height, TYPICAL))
    if min(box) > TOUCHES:
        return None
    fills = (width >= TOUCHES * box[0]) & (height >= TOUCHES * box[1])
    spread = float(np.std([(left + right) / 2, (top + bottom) / 2], axis=1).sum())
    spread_of_mass = float(np.std([_middle(drawn.sum(1)), _middle(drawn.sum(2))], axis=1).sum())
    return DrawingPlacement(*box, stretch=bool(np.median(fills)), by_mass=spread_of_mass < spread)


def _ends(ink: NDArray[np.bool_], axis: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The start of the first and the end of the last line along ``axis`` with ink, as shares of the side."""
    lines = np.any(ink, axis=axis)
    size = lines.shape[1]
    return lines.argmax(1) / size, 1 - lines[:, ::-1].argmax(1) / size


def _middle(mass: NDArray[Any]) -> NDArray[np.float64]:
    size = mass.shape[1]
    middle: NDArray[np.float64] = mass @ (np.arange(size) + 0.5) / mass.sum(1) / size
    return middle
