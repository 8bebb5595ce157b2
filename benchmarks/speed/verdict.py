"""A target, what was found, and whether it was met."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from osa_runtime.benchmarking.figures import Spread

MARK = {True: "met", False: "**missed**", None: "?"}


@dataclass(frozen=True)
class Verdict:
    """``met`` is None when there is nothing to judge by."""

    target: str
    found: str
    met: bool | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def at_least(target: str, least: float, found: Spread | None, unit: str = " ×") -> Verdict:
    if found is None:
        return not_measured(target)
    return Verdict(target, f"{found.median:.2f}{unit} ({found.p10:.2f} to {found.p90:.2f})", found.median >= least)


def not_measured(target: str) -> Verdict:
    return Verdict(target, "not measured", None)


def verdict_table(verdicts: Iterable[Verdict]) -> str:
    rows = [f"| {v.target} | {v.found} | {MARK[v.met]} |" for v in verdicts]
    return "\n".join(["| target | found | |", "|---|---|---|", *rows]) + "\n"
