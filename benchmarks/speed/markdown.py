"""Pieces of the reports in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from osa_runtime.benchmarking.figures import format_ratio, plural
from speed.contest import Contest


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def time_cell(contest: Contest, name: str, error: float | None = None) -> str:
    """Milliseconds, the spread of the rounds, the error; with a ! where there is a doubt."""
    if name not in contest:
        return "–"
    found = contest.milliseconds(name)
    doubt = " !" if contest.doubt(name) else ""
    accuracy = "" if error is None else f", {error:.0e}"
    return f"{milliseconds(found.median)} ({found.relative:.0%}{accuracy}){doubt}"


def ratio_cell(contest: Contest, name: str, against: str) -> str:
    if name not in contest or against not in contest:
        return "–"
    return format_ratio(contest.ratio(name, against).median)


def milliseconds(value: float) -> str:
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def circumstances(machine: Mapping[str, Any], threads: int, rounds: int) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cpu']}, {plural(machine['cores'], 'core')}, {plural(threads, 'thread')} for every contender; "
        f"{plural(rounds, 'round')} of blocks; {versions}.\n"
    )


def doubts_section(doubts: Sequence[str]) -> str:
    if not doubts:
        return "Nothing spoke against these figures: the machine was quiet and the rounds agreed.\n"
    return "\n".join(["**Do not trust this run.**\n", *(f"- {doubt}" for doubt in doubts)]) + "\n"
