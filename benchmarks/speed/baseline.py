"""The ratios of a release against those that were committed: what counts as a regression, and when to look again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osa_runtime.benchmarking.figures import Spread

TOLERATED = 0.15
ATTEMPTS = 3  # the first measurement, and two more for what seems to have become slower
HELD, REGRESSED, UNDECIDED, UNKNOWN = "held", "slower", "undecided", "no baseline"


@dataclass(frozen=True)
class Reading:
    """A ratio, higher is better. ``doubt`` says why it decides nothing, such as a machine that others use."""

    ratio: Spread
    doubt: str | None = None


# One contest, which gives one or more ratios by name.
Group = Callable[[], Mapping[str, Reading]]


@dataclass(frozen=True)
class Comparison:
    name: str
    expected: float | None
    readings: tuple[Reading, ...]

    @property
    def best(self) -> Reading:
        """Noise of other programs makes us slower in some attempts; it does not make us faster in a quiet one."""
        quiet = [reading for reading in self.readings if reading.doubt is None]
        return max(quiet or self.readings, key=lambda reading: reading.ratio.median)

    @property
    def outcome(self) -> str:
        if self.expected is None:
            return UNKNOWN
        if self.best.doubt is not None:
            return UNDECIDED
        return HELD if self.best.ratio.median >= (1 - TOLERATED) * self.expected else REGRESSED

    @property
    def change(self) -> float | None:
        return None if not self.expected else self.best.ratio.median / self.expected - 1


def compare(
    groups: Iterable[Group], expected: Mapping[str, float], say: Callable[[str], None], attempts: int = ATTEMPTS
) -> list[Comparison]:
    """Measure every group; one with a ratio that does not hold is measured again."""
    found: list[Comparison] = []
    for group in groups:
        comparisons = [Comparison(name, expected.get(name), (r,)) for name, r in group().items()]
        for _ in range(attempts - 1):
            open_ones = [c.name for c in comparisons if c.outcome in (REGRESSED, UNDECIDED)]
            if not open_ones:
                break
            say(f"measuring again: {', '.join(open_ones)}")
            again = group()
            comparisons = [Comparison(c.name, c.expected, (*c.readings, again[c.name])) for c in comparisons]
        found += comparisons
    return found


def forgotten(comparisons: Sequence[Comparison], expected: Mapping[str, float]) -> list[str]:
    """Ratios of the baseline that were not measured: a check that loses them would pass."""
    return sorted(set(expected) - {comparison.name for comparison in comparisons})


def as_baseline(comparisons: Sequence[Comparison], machine: Mapping[str, Any], threads: int) -> dict[str, Any]:
    doubtful = sorted(c.name for c in comparisons if c.best.doubt is not None)
    return {
        "about": "Ratios of our operator and models, higher is better; written by benchmarks/check.py --write.",
        "provisional": bool(doubtful),
        "threads": threads,
        "machine": {key: machine[key] for key in ("cpu", "cores", "versions")},
        "ratios": {
            c.name: {key: round(value, 4) for key, value in c.best.ratio.as_dict().items()} for c in comparisons
        },
    }


def expected_ratios(baseline: Mapping[str, Any]) -> dict[str, float]:
    return {name: figures["median"] for name, figures in baseline["ratios"].items()}
