"""A benchmark as its script describes it, the options that all have, and the run from first contest to report."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from driver.contest import LEAST_ROUNDS, Contest, Pace, Row
from driver.report import Report, Verdict, time_cell
from osa_runtime.benchmarking.machine import describe_machine
from osa_runtime.environment import usable_cores

RESULTS = Path(__file__).resolve().parent.parent / "results"
QUICK = Pace(rounds=2, block_seconds=0.005, pause=0.01)


@dataclass(frozen=True)
class Benchmark:
    """``contests`` opens the contenders of one place after the other; ``targets`` judges all rows by their places.

    ``ratios`` has pairs by the head of their column: who, and against whom. ``across`` turns the tables: a column for
    each place. ``panel`` is the title of the part of the figure that shows the times at a place over its tokens;
    without one the benchmark has no figure. ``threads`` are those of a benchmark that has no choice of them.
    """

    description: str | None
    name: str
    title: str
    about: str
    contests: Callable[[argparse.Namespace], Iterable[Contest]]
    targets: Callable[[Mapping[Any, Row]], Iterable[Verdict]]
    contenders: Sequence[str]
    ratios: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    unit: str = "Milliseconds of a call (spread of the rounds, relative error against float64)"
    cell: Callable[[Row, str], str] = time_cell
    across: bool = False
    panel: Callable[[Any], str | None] | None = None
    add_options: Callable[[argparse.ArgumentParser], None] = lambda _: None
    rounds: int = LEAST_ROUNDS
    threads: int | None = None

    def run(self, arguments: Sequence[str] | None = None) -> None:
        parser = parser_of(self.description, self.rounds, self.threads)
        parser.add_argument("--out", type=Path, help=f"a folder; {RESULTS.name}/ next to the script, or quick/ in it")
        self.add_options(parser)
        options = parse(parser, arguments)
        facts = {"machine": describe_machine(), "threads": options.threads, "rounds": options.pace.rounds}
        rows = []
        for contest in self.contests(options):
            print(contest.place, flush=True)
            rows.append(contest.measure(options.pace))
        self.report(rows, facts).write(options.out or (RESULTS / "quick" if options.quick else RESULTS))

    def report(self, rows: Sequence[Row], facts: Mapping[str, Any]) -> Report:
        return Report(self, facts, rows, list(self.targets({row.place: row for row in rows})))


def parser_of(
    description: str | None, rounds: int = LEAST_ROUNDS, threads: int | None = None
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least_one, help=f"{rounds} by default, 2 with --quick")
    if threads is None:
        parser.add_argument("--threads", type=at_least_one, default=usable_cores(), help="default: all cores")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds, to see that it works")
    parser.set_defaults(pace=Pace(rounds), **({} if threads is None else {"threads": threads}))
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser.parse_args(arguments)
    pace = QUICK if options.quick else options.pace
    options.pace = replace(pace, rounds=options.rounds or pace.rounds)
    return options


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number of at least 1")
    return int(text)


def names_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """The type of an option that takes several of these names, with commas."""

    def names(text: str) -> list[str]:
        if unknown := set(text.split(",")) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}; known are {', '.join(known)}")
        return text.split(",")

    return names
