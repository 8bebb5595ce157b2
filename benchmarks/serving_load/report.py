"""The targets of the server, and the results as JSON and as tables in Markdown."""

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from speed.report import MARK, Verdict, at_least, table

from serving_load.messages import PROTOCOLS
from serving_load.rounds import Measured, Point

COLUMNS = [(protocol, concurrency) for protocol in PROTOCOLS for concurrency in (1, 16)]
HEAD = [f"{protocol} c={concurrency}" for protocol, concurrency in COLUMNS]
MOST_OVERHEAD = 0.4e-3
RIVALS = (
    ("kserve", 16, 4.0),
    ("mlserver", 16, 4.0),
    ("mlserver, batching", 16, 4.0),
    ("triton", 16, 1.0),
    ("triton, 1 ms delay", 16, 1.0),
    ("triton", 1, 3.0),
    ("triton, 1 ms delay", 1, 3.0),
)


def verdicts(measured: Measured, model: str) -> Iterator[Verdict]:
    for rival, concurrency, least in RIVALS:
        title = f"c={concurrency}, binary HTTP: at least {least:g} × {rival}"
        theirs = measured.fastest(rival, model, concurrency, PROTOCOLS)
        if theirs is None:
            yield Verdict(title)
            continue
        if theirs.protocol != "binary":
            title += f" (its {theirs.protocol}: its binary HTTP does not work)"
        ours = measured.at("ours", Point(model, "binary", concurrency))
        yield at_least(title, least, ours.ratio(measured.at(rival, theirs)))
    overhead = measured.overhead("ours", Point(model, "binary", 1))
    title = f"overhead per request at c=1: under {1e3 * MOST_OVERHEAD:g} ms"
    known = overhead is not None
    yield Verdict(title, f"{1e3 * overhead:.2f} ms", overhead < MOST_OVERHEAD) if known else Verdict(title)
    ours, alone, two = (
        measured.at(name, Point(model, "binary", 16)) for name in ("ours", "ours, no batching", "ours, 2 workers")
    )
    yield at_least("batching at c=16: at least 2 × without", 2.0, ours.ratio(alone))
    yield at_least("two workers at c=16: at least 1.6 × one", 1.6, two.ratio(ours))


def as_json(measured: Measured, facts: Mapping[str, Any]) -> dict[str, Any]:
    rows = []
    for (name, point), series in measured.table.items():
        row = {"contender": name, **point._asdict(), "failure": series.failure, "rate": series.rate}
        if series.blocks:
            row |= {"median_seconds": series.latency, "spread": series.spread, "core_seconds": series.core_seconds}
        rows.append(row | {"rounds": [asdict(block) for block in series.blocks]})
    return {**facts, "others": measured.others, "run_seconds": measured.runs, "rows": rows}


def as_markdown(measured: Measured, facts: Mapping[str, Any]) -> str:
    middle, most = statistics.median(measured.others), max(measured.others)
    machine = f"{facts['machine']['cpu']}, {facts['machine']['cores']} cores, which server and client share"
    how = f"{facts['rounds']} rounds of {facts['seconds']:g} s per point"
    parts = [f"{machine}; {how}. Other processes used {middle:.1f} cores at the median, {most:.1f} at most.\n"]
    for model in measured.runs:
        parts += [_rates(measured, facts["memory"], model), _costs(measured, facts["memory"], model)]
        if facts["judged"]:
            rows = [[v.target, v.found, MARK[v.met]] for v in verdicts(measured, model)]
            parts.append(table([f"target, on `{model}`", "found", ""], rows))
    failed = [f"- {name}: {reason}" for name, reason in facts["missing"].items()]
    failed += [
        f"- {name}, {point.model}, {point.protocol}, c={point.concurrency}: {' '.join(series.failure.split())[:160]}"
        for (name, point), series in measured.table.items()
        if series.failure
    ]
    return "\n".join([*parts, "No figure\n", *(failed or ["- all were measured"])]) + "\n"


def _rates(measured: Measured, memory: Mapping[str, float], model: str) -> str:
    run = 1e3 * statistics.median(measured.runs[model])
    rows = []
    for name, size in memory.items():
        if not any(name == other and point.model == model for other, point in measured.table):
            continue
        cells = [_cell(measured, name, Point(model, *column)) for column in COLUMNS]
        found = (measured.overhead(name, Point(model, protocol, 1)) for protocol in ("binary", "json"))
        extra = next((f"{1e3 * overhead:.2f}" for overhead in found if overhead is not None), "–")
        rows.append([name, *cells, extra, f"{size:.0f}"])
    title = f"`{model}`, {run:.3f} ms in ONNX Runtime itself; requests/s (spread of the rounds)\n"
    return f"{title}\n{table(['server', *HEAD, 'overhead, ms', 'MB'], rows)}"


def _cell(measured: Measured, name: str, point: Point) -> str:
    series = measured.at(name, point)
    if not series.blocks:
        return "–" if series.failure else ""
    return f"{series.rate:.0f} ({100 * (series.spread or 0):.0f} %)"


def _costs(measured: Measured, names: Iterable[str], model: str) -> str:
    rows = []
    for name in names:
        found = [measured.at(name, Point(model, *column)).core_seconds for column in COLUMNS]
        if any(value is not None for value in found):
            rows.append([name, *("" if value is None else f"{1e3 * value:.3f}" for value in found)])
    return f"`{model}`: milliseconds of a core that the server takes per request\n\n{table(['server', *HEAD], rows)}"
