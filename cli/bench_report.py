"""The tables that ``osa bench`` shows, and the JSON that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from osa_runtime.atomic import atomic_file
from osa_runtime.benchmarking.node_profile import NodeProfile, ProfileRow
from osa_runtime.benchmarking.result import ARTIFACT, EAGER, BenchmarkResult, Figures, Measurement, format_ratio, plural
from osa_runtime.cli.options import check_file
from osa_runtime.errors import InputError

STDOUT = Path("-")
MIB = 2**20
TOP = 10


def check_files(json_file: Path | None, trace: Path | None) -> None:
    """Check the names of the output files before any work is done."""
    check_file("--profile", trace, ".json")
    check_file("--json", None if json_file == STDOUT else json_file, ".json", ", or - to print the figures")
    if trace is not None and json_file is not None and trace.absolute() == json_file.absolute():
        raise InputError(f"--profile and --json both name {trace}; use different names.")


def write_json(result: BenchmarkResult, path: Path) -> None:
    text = json.dumps(result.as_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    if path == STDOUT:
        typer.echo(text)
        return
    with atomic_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def show(result: BenchmarkResult) -> None:
    console = Console(highlight=False)
    console.print(_heading(result), soft_wrap=True, markup=False)
    console.print()
    console.print(_figures(result))
    for line in _footnotes(result):
        console.print(line, soft_wrap=True, markup=False)
    if result.profile is not None:
        _show_profile(result.profile, console)


def _heading(result: BenchmarkResult) -> str:
    artifact, machine = result.artifact, result.machine
    placement, versions = artifact["placement"], result.machine["versions"]
    threads = plural(result.settings["threads"], "thread")
    sizes = f"{artifact['bytes'] / MIB:.2f} MiB on disk"
    loads = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in result.load_seconds.items())
    lines = [
        f"{artifact['path']}: {artifact['format']}, {sizes}, sha256 {artifact['sha256'][:12]}…",
        f"{placement['provider']} on {placement['device']}, {threads}{_cpu_nodes(result)}",
        f"{machine['cpu']}, {machine['cores']} cores; " + ", ".join(f"{n} {v}" for n, v in versions.items()),
        f"load (files cached, libraries imported): {loads}",
        f"fed: {result.fed}",
    ]
    return "\n".join(lines)


def _cpu_nodes(result: BenchmarkResult) -> str:
    placement = result.artifact["placement"]
    if placement["device"] == "cpu":
        return ""
    nodes = placement["cpu_nodes"]
    return "; nodes on the CPU: " + ("unknown" if nodes is None else ", ".join(nodes) or "none")


def _figures(result: BenchmarkResult) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    sized = result.measurements[0].configuration.tokens is not None
    names = ["batch", *(["tokens"] if sized else []), "", "p50 ms", "p90 ms", "p99 ms", "rows/s", "spread"]
    names += ["MiB"] if result.memory else []
    names += ["against eager"] if EAGER in result.contenders else []
    for name in names:
        table.add_column(name, justify="left" if name in ("", "against eager") else "right", no_wrap=True)
    for index, measurement in enumerate(result.measurements):
        for name, figures in measurement.figures.items():
            table.add_row(*_row(result, index, measurement, name, figures))
    return table


def _row(result: BenchmarkResult, index: int, measurement: Measurement, name: str, figures: Figures) -> list[str]:
    configuration = measurement.configuration
    first = name == ARTIFACT
    sizes = [configuration.batch] + ([configuration.tokens] if configuration.tokens is not None else [])
    row = [str(size) if first else "" for size in sizes] + [name]
    row += [_three_digits(value) for value in (figures.p50_ms, figures.p90_ms, figures.p99_ms)]
    spread = f"{figures.block_medians_ms.relative:.0%}{'!' if figures.doubt else ' '}"
    row += [f"{figures.rows_per_second:,.0f}", spread]
    if result.memory:
        row.append(f"+{result.memory[name].run[index] / MIB:.1f}")
    if measurement.ratio is not None:
        ratio = measurement.ratio
        row.append(f"{format_ratio(ratio.median)} {ratio.p10:.3g}–{ratio.p90:.3g}" if first else "")
    return row


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def _footnotes(result: BenchmarkResult) -> list[str]:
    lines = ["", "spread: p10 to p90 of the medians of the blocks, relative to their median"]
    if result.memory:
        lines.append("MiB: peak growth of resident memory since before loading, in a separate process")
    if EAGER in result.contenders:
        lines.append("against eager: eager's time over the artifact's in the same round, median and p10 to p90")
    lines += [f"note: {note}" for note in result.notes]
    if result.doubts:
        lines += ["", "The figures marked with ! are too noisy to trust:", *(f"  {doubt}" for doubt in result.doubts)]
    return lines


def _show_profile(profile: NodeProfile, console: Console) -> None:
    for title, rows in (("operator", profile.operators), ("node", profile.nodes)):
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column(title, overflow="fold")
        for name in ("share", "ms per run", "calls per run"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in rows[:TOP]:
            table.add_row(_label(row, title), f"{row.share:.1%}", f"{row.ms_per_run:.3f}", f"{row.calls_per_run:g}")
        console.print()
        console.print(table)
        if len(rows) > TOP:
            rest = sum(row.share for row in rows[TOP:])
            console.print(f"… and {len(rows) - TOP} more with {rest:.1%} together; --json has all of them")


def _label(row: ProfileRow, title: str) -> str:
    name = row.name if title == "operator" or row.operator in row.name else f"{row.name} ({row.operator})"
    return name.replace("[", r"\[")
