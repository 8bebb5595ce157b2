"""The options that all benchmarks have, and their results as JSON, Markdown and figures."""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from osa_runtime.atomic import atomic_file
from osa_runtime.benchmarking.machine import describe_machine
from osa_runtime.benchmarking.result import Percentiles, format_ratio, plural
from osa_runtime.environment import usable_cores
from osa_runtime.plotting import Draw, write_figure
from speed.contest import LEAST_ROUNDS, Contest, Pace

RESULTS = Path(__file__).resolve().parent.parent / "results"
QUICK = Pace(rounds=2, block_seconds=0.005, pause=0.01)
MARK = {True: "met", False: "**missed**", None: "?"}
MIB = 1 << 20


def parser_of(
    description: str | None, rounds: int = LEAST_ROUNDS, threads: int | None = None
) -> argparse.ArgumentParser:
    """``threads`` are those of a benchmark that has no choice of them."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"{rounds} or more for figures to trust")
    if threads is None:
        parser.add_argument("--threads", type=int, default=usable_cores(), help="of each contender; default: all cores")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds, to see that it works")
    parser.add_argument("--out", type=Path, help=f"a folder; {RESULTS.name}/ next to the script, or quick/ in it")
    parser.set_defaults(**{} if threads is None else {"threads": threads})
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser.parse_args(arguments)
    for name in ("rounds", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}, expected a whole number of at least 1")
    options.out = options.out or (RESULTS / "quick" if options.quick else RESULTS)
    options.pace = QUICK if options.quick else Pace(rounds=options.rounds)
    return options


def parse_names(parser: argparse.ArgumentParser, flag: str, text: str, known: Iterable[str]) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(known):
        parser.error(f"{flag} has {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    return names


@dataclass(frozen=True)
class Verdict:
    """A target, what was found, and whether it was met: None when there is nothing to judge by."""

    target: str
    found: str = "not measured"
    met: bool | None = None


def judge(
    target: str,
    value: float | Percentiles | None,
    text: str = "{:.2f} ×",
    least: float = float("-inf"),
    most: float = float("inf"),
) -> Verdict:
    """The median counts, and is shown with its percentiles."""
    if value is None:
        return Verdict(target)
    if isinstance(value, Percentiles):
        shown = f"{text.format(value.median)} ({value.p10:.2f} to {value.p90:.2f})"
        return Verdict(target, shown, least <= value.median <= most)
    return Verdict(target, text.format(value), least <= value <= most)


class Plot(NamedTuple):
    title: str
    size: tuple[float, float]
    draw: Draw


@dataclass(frozen=True)
class Report:
    """``facts`` and ``content`` are for the JSON, ``about`` and ``sections`` for the Markdown; ``plots`` are files.

    ``doubts`` are the reasons not to trust the figures.
    """

    name: str
    title: str
    facts: Mapping[str, Any]
    doubts: Sequence[str]
    content: Mapping[str, Any]
    sections: Sequence[str]
    verdicts: Sequence[Verdict] = ()
    plots: Mapping[str, Plot] = field(default_factory=dict)
    about: str = ""

    def as_json(self) -> dict[str, Any]:
        judged = {"trustworthy": not self.doubts, "doubts": list(self.doubts)}
        judged |= {"targets": [asdict(verdict) for verdict in self.verdicts]}
        plots = {"plots": {plot.title: file for file, plot in self.plots.items()}} if self.plots else {}
        return {"benchmark": self.name, **self.facts, **plots, **judged, **self.content}

    def as_markdown(self) -> str:
        quiet = "Nothing spoke against these figures: the machine was quiet and the rounds agreed.\n"
        noisy = "\n".join(["**Do not trust this run.**\n", *(f"- {doubt}" for doubt in self.doubts)]) + "\n"
        rows = [[verdict.target, verdict.found, MARK[verdict.met]] for verdict in self.verdicts]
        targets = ["## Targets\n", table(["target", "found", ""], rows)] if rows else []
        plots = "".join(f"![{plot.title}]({file})\n" for file, plot in self.plots.items())
        head = [f"# {self.title}\n", circumstances(self.facts), self.about, noisy if self.doubts else quiet]
        return "\n".join(part for part in (*head, *targets, plots, *self.sections) if part)

    def write(self, folder: Path) -> None:
        write_text(folder / f"{self.name}.json", json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n")
        write_text(folder / f"{self.name}.md", self.as_markdown())
        for file, plot in self.plots.items():
            write_figure(folder / file, plot.size, marked(plot.draw) if self.doubts else plot.draw)
        print(self.as_markdown())
        print(f"wrote {', '.join([f'{self.name}.json', f'{self.name}.md', *self.plots])} to {folder}")


def marked(draw: Draw) -> Draw:
    """The same with a warning, since a figure travels without its report."""

    def both(figure: Any) -> None:
        draw(figure)
        figure.suptitle("NOISY RUN, do not trust", fontsize=10, x=0.99, ha="right", color="#c2601a")

    return both


def write_text(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def facts_of(options: argparse.Namespace, **more: Any) -> dict[str, Any]:
    return {"machine": describe_machine(), "threads": options.threads, "rounds": options.pace.rounds, **more}


def circumstances(facts: Mapping[str, Any]) -> str:
    machine = facts["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cpu']}, {plural(machine['cores'], 'core')}, {plural(facts['threads'], 'thread')} for every "
        f"contender; {plural(facts['rounds'], 'round')} of blocks; {versions}.\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def time_cell(contest: Contest, name: str, error: float | None = None) -> str:
    """Milliseconds, the spread of the rounds, the error; with a ! where there is a doubt."""
    if name not in contest:
        return "–"
    found, accuracy = contest.milliseconds(name), "" if error is None else f", {error:.0e}"
    return f"{three_digits(found.median)} ({found.relative:.0%}{accuracy}){' !' if contest.doubt(name) else ''}"


def ratio_cell(contest: Contest, name: str, against: str) -> str:
    found = contest.ratio(name, against)
    return "–" if found is None else format_ratio(found.median)


def three_digits(value: float) -> str:
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def mebi(size: float | None) -> str:
    return "–" if size is None else f"{size / MIB:.1f}"
