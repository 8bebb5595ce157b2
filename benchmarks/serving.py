"""Ours, Triton, KServe and MLServer under the same load, in one run that takes turns.

All serve the same ONNX files with one ONNX Runtime thread per model: the digits model that `make demo` leaves, and an
MLP that runs in some microseconds and shows the server. All are asked by the same client, in a closed loop, and every
answer is compared with the model's. In every round each contender has a block at every point: a pause, a warm-up, the
measurement. Servers that are missing are installed into environments of their own, below ~/.cache.

    python benchmarks/serving.py [--contenders ours,triton] [--rounds 5] [--seconds 2] [--digits runs/digits-onnx]
"""

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from serving_load.messages import PROTOCOLS
from serving_load.rounds import Measured, Point, Served, measure, write_mlp
from serving_load.servers import STARTS, Contender, Missing
from speed.report import RESULTS, Report, Verdict, facts_of, judge, parse, parse_names, parser_of, table

from osa_runtime.benchmarking.machine import contention_doubt

FAMILIES = {
    "ours": ("ours", "ours, no batching", "ours, 2 workers"),
    "triton": ("triton", "triton, 1 ms delay"),
    "kserve": ("kserve",),
    "mlserver": ("mlserver", "mlserver, batching"),
}
UNDER_LOAD = {"ours, no batching": ("binary",), "ours, 2 workers": PROTOCOLS}  # asked at c = 16 only, in these
COLUMNS = {f"{protocol} c={c}": (protocol, c) for protocol in PROTOCOLS for c in (1, 16)}
RIVALS = (  # name, connections, times as fast
    ("kserve", 16, 4.0),
    ("mlserver", 16, 4.0),
    ("mlserver, batching", 16, 4.0),
    ("triton", 16, 1.0),
    ("triton, 1 ms delay", 16, 1.0),
    ("triton", 1, 3.0),
    ("triton, 1 ms delay", 1, 3.0),
)


def plan(models: Sequence[str], names: Sequence[str]) -> dict[Point, list[str]]:
    """The contenders that are asked at each point."""
    # protocols next to each other, because their rates are compared, too
    points = [Point(model, protocol, c) for model in models for c in (1, 16) for protocol in PROTOCOLS]
    return {point: [name for name in names if _is_asked(name, point)] for point in points}


def _is_asked(name: str, point: Point) -> bool:
    return name not in UNDER_LOAD or (point.concurrency == 16 and point.protocol in UNDER_LOAD[name])


def start(names: Sequence[str], folders: Sequence[Path]) -> tuple[list[Contender], dict[str, str]]:
    """Those that run, and why the others do not."""
    running, missing = [], {}
    for name in names:
        try:
            running.append(STARTS[name](name, folders))
            print(f"{name} is ready", flush=True)
        except Missing as reason:
            missing[name] = str(reason)
            print(f"{name} is missing: {reason}", flush=True)
    return running, missing


def run(options: argparse.Namespace) -> tuple[Measured, dict[str, Any]]:
    """The measurements, and their circumstances."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        models = [Served(write_mlp(home / "mlp")), Served(options.digits.resolve())]
        running, missing = start(options.names, [model.folder for model in models])
        for contender in running:
            stack.push(contender.closing)
        work = plan([model.name for model in models], [contender.name for contender in running])
        facts = facts_of(options, seconds=options.seconds, missing=missing)
        measured = measure(running, models, work, options.rounds, options.seconds)
        return measured, facts | {"memory": {contender.name: contender.memory() for contender in running}}


def verdicts(measured: Measured, model: str) -> Iterator[Verdict]:
    for rival, concurrency, least in RIVALS:
        title = f"{model}, c={concurrency}, binary HTTP: at least {least:g} × {rival}"
        theirs = measured.fastest(rival, model, concurrency, PROTOCOLS)
        if theirs and theirs.protocol != "binary":
            title += f" (its {theirs.protocol}: its binary HTTP does not work)"
        point = Point(model, "binary", concurrency)
        yield judge(title, measured.ratio("ours", point, rival, theirs), least=least)
    overhead = measured.overhead("ours", Point(model, "binary", 1))
    title = f"{model}, overhead per request at c=1: under 0.4 ms"
    yield judge(title, overhead and 1e3 * overhead, "{:.2f} ms", most=0.4)
    loaded = Point(model, "binary", 16)
    title = f"{model}, batching at c=16: at least 2 × without"
    yield judge(title, measured.ratio("ours", loaded, "ours, no batching"), least=2)
    title = f"{model}, two workers at c=16: at least 1.6 × one"
    yield judge(title, measured.ratio("ours, 2 workers", loaded, "ours"), least=1.6)


def build_report(measured: Measured, facts: Mapping[str, Any]) -> Report:
    others, memory = statistics.median(measured.others), facts["memory"]
    busy = contention_doubt(others, facts["machine"]["cores"])  # server and client share all cores
    sections = [
        part for model in measured.runs for part in (_rates(measured, memory, model), _costs(measured, memory, model))
    ]
    reasons = facts["missing"] | {
        f"{name}, {', '.join(map(str, p))}": why for (name, p), why in measured.failures.items()
    }
    failed = [f"- {name}: {reason[:160]}\n" for name, reason in reasons.items()]
    sections.append("## No figure\n\n" + "".join(failed or ["- all were measured\n"]))
    content = {"others": measured.others, "run_seconds": measured.runs, "rows": [*_rows(measured)]}
    judged = [v for model in measured.runs for v in verdicts(measured, model)]
    about = (
        f"Blocks of {facts['seconds']:g} s; server and client share the cores. Other processes used {others:.1f} cores "
        f"at the median, {max(measured.others):.1f} at most.\n"
    )
    return Report(
        "serving", "Servers under load", facts, [busy] if busy else [], content, sections, judged, about=about
    )


def _rows(measured: Measured) -> Iterator[dict[str, Any]]:
    for (name, point), blocks in measured.blocks.items():
        figures = {figure: measured.median(name, point, figure) for figure in ("rate", "median", "core_seconds")}
        yield {"contender": name, **point._asdict(), **figures, "rounds": [block._asdict() for block in blocks]}


def _rates(measured: Measured, memory: Mapping[str, float], model: str) -> str:
    run = 1e3 * statistics.median(measured.runs[model])
    rows = []
    for name, size in memory.items():
        cells = [_cell(measured, name, Point(model, *column)) for column in COLUMNS.values()]
        found = (measured.overhead(name, Point(model, protocol, 1)) for protocol in ("binary", "json"))
        extra = next((f"{1e3 * overhead:.2f}" for overhead in found if overhead is not None), "–")
        rows.append([name, *cells, extra, f"{size:.0f}"])
    title = f"## {model}, {run:.3f} ms in ONNX Runtime itself\n\nRequests/s (spread of the rounds):\n"
    return f"{title}\n{table(['server', *COLUMNS, 'overhead, ms', 'MB'], rows)}"


def _cell(measured: Measured, name: str, point: Point) -> str:
    rates = measured.figures(name, point)
    if not rates:
        return "–" if (name, point) in measured.failures else ""
    middle = statistics.median(rates)
    return f"{middle:.0f} ({(max(rates) - min(rates)) / middle:.0%})"


def _costs(measured: Measured, names: Sequence[str], model: str) -> str:
    rows = []
    for name in names:
        found = [measured.median(name, Point(model, *column), "core_seconds") for column in COLUMNS.values()]
        rows.append([name, *("" if value is None else f"{1e3 * value:.3f}" for value in found)])
    return f"Milliseconds of a core that the server takes per request:\n\n{table(['server', *COLUMNS], rows)}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, rounds=5, threads=1)
    parser.add_argument("--contenders", default=",".join(FAMILIES))
    parser.add_argument("--seconds", type=float, default=2.0, help="of each block; 0.2 with --quick")
    parser.add_argument("--digits", type=Path, default=RESULTS.parent.parent / "runs" / "digits-onnx")
    options = parse(parser, arguments)
    if options.quick:
        options.rounds, options.seconds = options.pace.rounds, 0.2
    families = parse_names(parser, "--contenders", options.contenders, FAMILIES)
    options.names = [name for family in families for name in FAMILIES[family]]
    if not (options.digits / "manifest.json").is_file():
        parser.error(f"{options.digits} is not an exported model; run `make demo` first, or name one with --digits")
    build_report(*run(options)).write(options.out)


if __name__ == "__main__":
    main()
