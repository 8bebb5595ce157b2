"""Claims: sentences about a measured number, with a bound that was written down before the experiment ran."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

HOLDS, FAILS, NOT_JUDGED = "holds", "fails", "not judged"


@dataclass(frozen=True)
class Claim:
    """``text`` holds if the number called ``quantity`` is within the bounds.

    ``in_quick`` is for claims that are true of the small sizes of a quick run, too; others are not judged there.
    """

    text: str
    quantity: str
    at_least: float = -math.inf
    at_most: float = math.inf
    source: str = "this project"
    in_quick: bool = True

    @property
    def bound(self) -> str:
        parts = [f"≥ {self.at_least:g}"] if self.at_least > -math.inf else []
        return " and ".join(parts + ([f"≤ {self.at_most:g}"] if self.at_most < math.inf else []))

    def judge(self, measured: Mapping[str, float], quick: bool) -> Verdict:
        """A number that is missing or not finite fails: an experiment that measured nothing has shown nothing."""
        value = measured.get(self.quantity)
        if quick and not self.in_quick:
            return Verdict(self, value, NOT_JUDGED)
        known = value is not None and math.isfinite(value)
        within = known and self.at_least <= value <= self.at_most  # type: ignore[operator]  # ``known`` has checked it
        return Verdict(self, value, HOLDS if within else FAILS)


@dataclass(frozen=True)
class Verdict:
    """A claim and what became of it; ``value`` is None if it was not measured."""

    claim: Claim
    value: float | None
    result: str

    @property
    def failed(self) -> bool:
        return self.result == FAILS
