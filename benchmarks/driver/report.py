"""What is written of a benchmark: its targets and tables in Markdown, every round in JSON, and times as a figure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driver.contest import Row
from osa_runtime.atomic import atomic_file
from osa_runtime.benchmarking.result import Percentiles, format_ratio, plural
from osa_runtime.plotting import legend_below, logarithmic, write_figure

if TYPE_CHECKING:
    from driver.benchmark import Benchmark

MARK = {True: "met", False: "**missed**", None: "?"}
NOTHING = "–"
MIB = 1 << 20
COLOURS = ("#0b6e99", "#7cc4e0", "#829ab1", "#c2601a", "#7b4ea3")
WARNING = "NOISY RUN, do not trust"


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


def time_cell(row: Row, name: str) -> str:
    """Milliseconds, the spread of the rounds, the error; with a ! where there is a doubt."""
    found, error = row.milliseconds(name), row.errors.get(name)
    accuracy = "" if error is None else f", {error:.0e}"
    return f"{three_digits(found.median)} ({found.relative:.0%}{accuracy}){' !' if row.doubt(name) else ''}"


@dataclass(frozen=True)
class Report:
    """What a benchmark found; ``facts`` has its circumstances."""

    benchmark: "Benchmark"
    facts: Mapping[str, Any]
    rows: Sequence[Row]
    verdicts: Sequence[Verdict]

    @property
    def doubts(self) -> list[str]:
        """Every reason not to trust some figure, once for all figures that it holds for."""
        return grouped({row.place: {name: row.doubt(name) for name in row.blocks} for row in self.rows})

    @property
    def plots(self) -> list[str]:
        return [f"{self.benchmark.name}-time.svg"] if self.benchmark.panel else []

    def as_json(self) -> dict[str, Any]:
        judged = {"trustworthy": not self.doubts, "doubts": self.doubts, "targets": [asdict(v) for v in self.verdicts]}
        return {"benchmark": self.benchmark.name, **self.facts, **judged, "rows": [row.as_dict() for row in self.rows]}

    def as_markdown(self) -> str:
        quiet = "Nothing spoke against these figures: the machine was quiet and the rounds agreed.\n"
        noisy = "**Do not trust this run.**\n\n" + bullets(self.doubts)
        missing = bullets(grouped({row.place: row.missing for row in self.rows}))
        targets = table(["target", "found", ""], [[v.target, v.found, MARK[v.met]] for v in self.verdicts])
        head = f"# {self.benchmark.title}\n\n{circumstances(self.facts)}\n{self.benchmark.about}\n"
        parts = [head, noisy if self.doubts else quiet]
        parts += ["## Targets\n", targets, *(f"![{self.benchmark.title}]({file})\n" for file in self.plots)]
        parts += [f"## {unit}\n\n{grid}" for unit, grid in self.tables().items()]
        return "\n".join([*parts, f"## No figure\n\n{missing}"] if missing else parts)

    def tables(self) -> dict[str, str]:
        """The times and ratios, and one table for each further figure."""
        benchmark, names = self.benchmark, self.benchmark.contenders
        times = {name: [benchmark.cell(row, name) if name in row else NOTHING for row in self.rows] for name in names}
        ratios = {head: [ratio_cell(row, pair) for row in self.rows] for head, pair in benchmark.ratios.items()}
        found = {benchmark.unit: self.table_of(times | ratios)}
        for figure in dict.fromkeys(key for row in self.rows for weighed in row.figures.values() for key in weighed):
            values = {name: [row.figure(name, figure) for row in self.rows] for name in names}
            found[figure] = self.table_of(
                {name: [NOTHING if x is None else three_digits(x) for x in line] for name, line in values.items()}
            )
        return found

    def table_of(self, lines: Mapping[str, Sequence[str]]) -> str:
        """Without contenders that have nothing anywhere."""
        measured = {head: line for head, line in lines.items() if set(line) != {NOTHING}}
        sizes = {head: [str(getattr(row.place, head)) for row in self.rows] for head in self.rows[0].place._fields}
        across = [[head, *line] for head, line in (sizes | measured).items()]
        head, *body = across if self.benchmark.across else zip(*across, strict=True)
        return table(head, body)

    def write(self, folder: Path) -> None:
        name = self.benchmark.name
        write_text(folder / f"{name}.json", json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n")
        write_text(folder / f"{name}.md", self.as_markdown())
        for file in self.plots:
            self.draw(folder / file)
        print(f"{self.as_markdown()}\nwrote {', '.join([f'{name}.json', f'{name}.md', *self.plots])} to {folder}")

    def draw(self, path: Path) -> None:
        """Time over tokens, a panel beside the other; with a warning if need be, for a figure travels alone."""
        panels: dict[str, list[Row]] = {}
        for row in sorted(self.rows, key=lambda row: row.place.tokens):
            if self.benchmark.panel and (title := self.benchmark.panel(row.place)):
                panels.setdefault(title, []).append(row)

        def draw(figure: Any) -> None:
            axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
            for part, (title, rows) in zip(axes, panels.items(), strict=True):
                draw_times(part, rows, self.benchmark.contenders)
                part.set_title(f"milliseconds, {title}")
            legend_below(figure, axes[0])
            if self.doubts:
                figure.suptitle(WARNING, fontsize=10, x=0.99, ha="right", color=COLOURS[3])

        write_figure(path, (5.2 * len(panels), 4.4), draw)


def draw_times(axes: Any, rows: Sequence[Row], contenders: Sequence[str]) -> None:
    for name, colour in zip(contenders, COLOURS, strict=False):
        measured = [(row.place.tokens, row.milliseconds(name)) for row in rows if name in row]
        x, spreads = [tokens for tokens, _ in measured], [spread for _, spread in measured]
        axes.plot(x, [s.median for s in spreads], marker="o", ms=3.5, color=colour, label=name)
        axes.fill_between(x, [s.p10 for s in spreads], [s.p90 for s in spreads], color=colour, alpha=0.2, lw=0)
    logarithmic(axes.xaxis, [row.place.tokens for row in rows if all(name in row for name in contenders)])
    logarithmic(axes.yaxis, subs=(1.0, 3.0))
    axes.set_xlabel("tokens")


def grouped(reasons: Mapping[Any, Mapping[str, str | None]]) -> list[str]:
    """The reasons by place and contender, each of them once, with the places and contenders that it concerns."""
    concerned: dict[str, list[str]] = {}
    for place, found in reasons.items():
        for reason in dict.fromkeys(filter(None, found.values())):
            names = [name for name in found if found[name] == reason]
            concerned.setdefault(reason, []).append(f"{place} ({'; '.join(names)})")
    return [f"{' / '.join(places)}: {reason}" for reason, places in concerned.items()]


def circumstances(facts: Mapping[str, Any]) -> str:
    machine = facts["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cpu']}, {plural(machine['cores'], 'core')}, {plural(facts['threads'], 'thread')} for every "
        f"contender; {plural(facts['rounds'], 'round')} of blocks; {versions}.\n"
    )


def ratio_cell(row: Row, pair: tuple[str, str]) -> str:
    found = row.ratio(*pair)
    return NOTHING if found is None else f"{format_ratio(found.median)} ({found.p10:.2f} to {found.p90:.2f})"


def three_digits(value: float) -> str:
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def bullets(lines: Iterable[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def write_text(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
