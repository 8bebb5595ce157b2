"""Ours, Triton, KServe and MLServer under the same load, in one run that takes turns.

All serve the same ONNX files with one ONNX Runtime thread per model: the digits model that `make demo` leaves, and an
MLP that runs in some microseconds and shows the server. All are asked by the same client, in a closed loop, and every
answer is compared with the model's. In every round each contender has a block at every point: a pause, a warm-up, the
measurement. Servers that are missing are installed into environments of their own, below ~/.cache.

    python benchmarks/serving.py [--contenders ours,triton] [--rounds 5] [--seconds 2] [--digits runs/digits-onnx]
"""

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from driver.benchmark import RESULTS, Benchmark, names_of
from driver.contest import Row
from driver.report import Verdict, judge
from serving_load.contest import ITSELF, OVERHEAD, Point, Served, ServedContest, write_mlp
from serving_load.messages import PROTOCOLS
from serving_load.servers import STARTS, Contender, ServerUnavailable

DIGITS = RESULTS.parent.parent / "runs" / "digits-onnx"
FAMILIES = {
    "ours": ("ours", "ours, no batching", "ours, 2 workers"),
    "triton": ("triton", "triton, 1 ms delay"),
    "kserve": ("kserve",),
    "mlserver": ("mlserver", "mlserver, batching"),
}
LOADED = 16  # connections
UNDER_LOAD = {"ours, no batching": ("binary",), "ours, 2 workers": PROTOCOLS}  # asked under load only, in these
RIVALS = (  # name, connections, times as fast
    ("kserve", LOADED, 4.0),
    ("mlserver", LOADED, 4.0),
    ("mlserver, batching", LOADED, 4.0),
    ("triton", LOADED, 1.0),
    ("triton, 1 ms delay", LOADED, 1.0),
    ("triton", 1, 3.0),
    ("triton, 1 ms delay", 1, 3.0),
)


def contests(options: argparse.Namespace) -> Iterator[ServedContest]:
    seconds = options.seconds or (0.2 if options.quick else 2.0)
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        models = [Served(write_mlp(home / "mlp")), Served(options.digits.resolve())]
        names = [name for family in options.contenders for name in FAMILIES[family]]
        running, missing = start(names, [model.folder for model in models])
        for contender in running:
            stack.push(contender.closing)
        for model in models:
            for connections in (1, LOADED):
                asks = {
                    f"{contender.name}, {protocol}": partial(model.ask, contender, protocol, connections, seconds)
                    for contender in running
                    for protocol in PROTOCOLS
                    if is_asked(contender.name, protocol, connections)
                }
                here = {} if connections > 1 else {ITSELF: model.run_here}
                yield ServedContest(Point(model.name, connections), here | asks, missing)


def start(names: Sequence[str], folders: Sequence[Path]) -> tuple[list[Contender], dict[str, str]]:
    """Those that run, and why the others do not."""
    running, missing = [], {}
    for name in names:
        try:
            running.append(STARTS[name](name, folders))
            print(f"{name} is ready", flush=True)
        except ServerUnavailable as reason:
            missing[name] = str(reason)
            print(f"{name} is missing: {reason}", flush=True)
    return running, missing


def is_asked(name: str, protocol: str, connections: int) -> bool:
    return name not in UNDER_LOAD or (connections == LOADED and protocol in UNDER_LOAD[name])


def targets(rows: Mapping[Point, Row]) -> Iterator[Verdict]:
    for model in dict.fromkeys(point.model for point in rows):
        for rival, connections, least in RIVALS:
            yield against(rows[Point(model, connections)], rival, least)
        overhead = rows[Point(model, 1)].figure("ours, binary", OVERHEAD)
        yield judge(f"{model}, overhead per request at c=1: under 0.4 ms", overhead, "{:.2f} ms", most=0.4)
        loaded = rows[Point(model, LOADED)]
        for what, least, ours, other in (
            ("batching at c=16: at least 2 × without", 2, "ours, binary", "ours, no batching, binary"),
            ("two workers at c=16: at least 1.6 × one", 1.6, "ours, 2 workers, binary", "ours, binary"),
        ):
            yield judge(f"{model}, {what}", loaded.ratio(ours, other), least=least)


def against(row: Row, rival: str, least: float) -> Verdict:
    """Ours in binary HTTP against the rival's, or the fastest of its protocols if its binary HTTP does not work."""
    title = f"{row.place}, binary HTTP: at least {least:g} × {rival}"
    working = [protocol for protocol in PROTOCOLS if f"{rival}, {protocol}" in row]
    if not working:
        return judge(title, None, least=least)
    fastest = min(working, key=lambda protocol: row.milliseconds(f"{rival}, {protocol}").median)
    chosen = "binary" if "binary" in working else fastest
    note = "" if chosen == "binary" else f" (its {chosen}: its binary HTTP does not work)"
    return judge(title + note, row.ratio("ours, binary", f"{rival}, {chosen}"), least=least)


def rate_cell(row: Row, name: str) -> str:
    found = row.milliseconds(name)
    return f"{1e3 / found.median:.0f} ({found.relative:.0%})"


ASKED = [f"{name}, {protocol}" for names in FAMILIES.values() for name in names for protocol in PROTOCOLS]


def exported_model(text: str) -> Path:
    if not (Path(text) / "manifest.json").is_file():
        reason = f"{text} is not an exported model; run `make demo` first, or name one with --digits"
        raise argparse.ArgumentTypeError(reason)
    return Path(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--contenders", type=names_of(FAMILIES), default=",".join(FAMILIES))
    parser.add_argument("--seconds", type=float, help="of each block; 2 by default, 0.2 with --quick")
    parser.add_argument("--digits", type=exported_model, default=str(DIGITS), help="a model that `make demo` exports")


BENCHMARK = Benchmark(
    description=__doc__,
    name="serving",
    title="Servers under load",
    about="Closed loops of as many connections; server and client share the cores.",
    contests=contests,
    targets=targets,
    contenders=[ITSELF, *ASKED],
    unit="Requests/s (spread of the rounds)",
    cell=rate_cell,
    across=True,
    add_options=add_options,
    rounds=5,
    threads=1,
)

if __name__ == "__main__":
    BENCHMARK.run()
