"""The results as JSON, as tables in Markdown, and as a plot."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from serving_load.rounds import Measured, Point
from serving_load.summary import cpu, latency, overhead, rate, spread
from serving_load.targets import verdicts

MARK = {True: "yes", False: "**no**", None: "?"}
COLUMNS = [(protocol, concurrency) for protocol in ("binary", "json", "grpc") for concurrency in (1, 16)]


def as_json(measured: Measured, facts: Mapping[str, Any]) -> dict[str, Any]:
    rows = []
    for (name, point), series in measured.table.items():
        row = {"contender": name, **point._asdict(), "failure": series.failure, "rate": rate(series)}
        if series.blocks:
            row |= {"median_seconds": latency(series), "spread": spread(series), "core_seconds": cpu(series)}
        rows.append(row | {"rounds": [asdict(block) for block in series.blocks]})
    return {**facts, "others": measured.others, "run_seconds": measured.runs, "rows": rows}


def as_markdown(measured: Measured, facts: Mapping[str, Any]) -> str:
    middle, most = statistics.median(measured.others), max(measured.others)
    machine = facts["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores, which server and client share"
    how = f"{facts['rounds']} rounds of {facts['seconds']:g} s per point"
    parts = [f"{where}; {how}. Other processes used {middle:.1f} cores at the median, {most:.1f} at most.\n"]
    for model in measured.runs:
        parts.append(_rates(measured, facts["memory"], model))
        parts.append(_costs(measured, facts["memory"], model))
        if facts["judged"]:
            parts.append(_targets(measured, model))
    failed = [f"- {name}: {reason}" for name, reason in facts["missing"].items()]
    failed += [
        f"- {n}, {p.model}, {p.protocol}, c={p.concurrency}: {_line(s.failure)}"
        for (n, p), s in measured.table.items()
        if s.failure
    ]
    return "\n".join([*parts, "No figure\n", *(failed or ["- all were measured"])]) + "\n"


def _rates(measured: Measured, memory: Mapping[str, float], model: str) -> str:
    run = 1e3 * statistics.median(measured.runs[model])
    head = " | ".join(f"{protocol} c={concurrency}" for protocol, concurrency in COLUMNS)
    lines = [f"`{model}`, {run:.3f} ms in ONNX Runtime itself; requests/s (spread of the rounds)\n"]
    lines += [f"| server | {head} | overhead, ms | MB |", "|---" * (len(COLUMNS) + 3) + "|"]
    for name, size in memory.items():
        if not any(name == other and point.model == model for other, point in measured.table):
            continue
        cells = [_cell(measured, name, Point(model, *column)) for column in COLUMNS]
        extra = overhead(measured, name, Point(model, "binary", 1)) or overhead(measured, name, Point(model, "json", 1))
        cells.append("–" if extra is None else f"{1e3 * extra:.2f}")
        lines.append(f"| {name} | {' | '.join(cells)} | {size:.0f} |")
    return "\n".join(lines) + "\n"


def _costs(measured: Measured, names: Iterable[str], model: str) -> str:
    head = " | ".join(f"{protocol} c={concurrency}" for protocol, concurrency in COLUMNS)
    lines = [f"`{model}`: milliseconds of a core that the server takes per request\n"]
    lines += [f"| server | {head} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name in names:
        found = [cpu(measured.table.get((name, Point(model, *column)))) for column in COLUMNS]
        if any(value is not None for value in found):
            cells = ["" if value is None else f"{1e3 * value:.3f}" for value in found]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(measured: Measured, name: str, point: Point) -> str:
    series = measured.table.get((name, point))
    value = rate(series)
    if series is None:
        return ""
    return "–" if value is None else f"{value:.0f} ({100 * spread(series):.0f} %)"


def _targets(measured: Measured, model: str) -> str:
    rows = [f"| {v.target} | {v.found} | {MARK[v.met]} |" for v in verdicts(measured, model)]
    return "\n".join([f"| target, on `{model}` | found | met |", "|---|---|---|", *rows]) + "\n"


def _line(text: str) -> str:
    return " ".join(text.split())[:160]


def draw(measured: Measured, models: Sequence[str]) -> Any:
    """Requests per second at c = 16, a panel for each model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        names = list(dict.fromkeys(name for name, point in measured.table if point == Point(model, "binary", 16)))
        for place, protocol in enumerate(("binary", "json", "grpc")):
            rates = [rate(measured.table.get((name, Point(model, protocol, 16)))) or 0.0 for name in names]
            axes.barh([row + 0.27 * (place - 1) for row in range(len(names))], rates, 0.25, label=protocol)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_title(f"{model}, 16 connections")
        axes.set_xlabel("requests/s")
        axes.legend()
    return figure
