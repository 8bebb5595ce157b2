"""The accuracy of a classifier, its confidence interval, and a test whether two differ by more than chance."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z = 1.959963984540054  # of the normal distribution, for 95 %
MOST_DROP = 0.5  # percentage points, in a certificate
CHANCE = 0.01  # differences that are likelier than this are called chance


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of a model: ``by_class`` has samples and right answers by label, ``nonfinite`` is NaN or Inf."""

    model: str
    samples: int
    correct: int
    nonfinite: int
    by_class: tuple[tuple[int, ...], ...]

    @property
    def value(self) -> float:
        return self.correct / self.samples

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval: the accuracies that such a count is compatible with."""
        n, p = self.samples, self.value
        middle = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
        half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.value:.2f} % right ({self.correct}); 95 % interval {100 * low:.2f} to {100 * high:.2f} %"


@dataclass(frozen=True)
class Evaluation:
    """The accuracy of a model, and of another. ``differ`` counts the samples with different answers, ``gained`` those
    that only the model has right, ``lost`` those that only the other has right."""

    data: str
    sha256: str  # of the images and labels
    accuracy: Accuracy
    against: Accuracy | None = None
    differ: int = 0
    gained: int = 0
    lost: int = 0
    notes: tuple[str, ...] = ()

    @property
    def drop(self) -> float:
        """The loss of accuracy in percentage points; negative if the model is better."""
        return 100 * (self.lost - self.gained) / self.accuracy.samples

    @property
    def p_value(self) -> float:
        return mcnemar(self.gained, self.lost)

    @property
    def failure(self) -> str | None:
        """The reason why there is no accuracy: NaN and Inf are not answers."""
        for part in (self.accuracy, self.against):
            if part is not None and part.nonfinite:
                return f"{part.model} returns NaN or Inf for {part.nonfinite} of {part.samples} samples"
        return None

    def __str__(self) -> str:
        said = f"{self.accuracy.samples} samples of {self.data}: {self.accuracy}"
        return (
            said
            if self.against is None
            else f"{said}; {100 * self.against.value:.2f} % in the reference, {self.differ} answers differ"
        )

    @property
    def acceptable(self) -> bool:
        """True if all outputs are finite and the reference is not better by much and by more than chance."""
        worse = self.beyond(MOST_DROP) and self.p_value < CHANCE
        return self.failure is None and not worse

    def beyond(self, points: float) -> bool:
        """Return whether the accuracy is lower than the other's by more than these percentage points."""
        return 100 * (self.lost - self.gained) > points * self.accuracy.samples * (1 + 1e-12)


def mcnemar(gained: int, lost: int) -> float:
    """McNemar's exact test: the probability of a split this uneven if gains and losses are equally likely."""
    n, fewer = gained + lost, min(gained, lost)
    term, tail = 1, 0
    for i in range(fewer + 1):
        tail += term
        term = term * (n - i) // (i + 1)
    return min(1.0, 2 * tail / 2**n)
