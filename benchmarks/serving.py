"""Ours, Triton, KServe and MLServer under the same load, in one run that takes turns.

All serve the same ONNX files with one ONNX Runtime thread per model: the digits model that `make demo` leaves, and an
MLP that runs in some microseconds and shows the server. All are asked by the same client, in a closed loop, and every
answer is compared with the model's. In every round each contender has a block at every point: a pause, a warm-up, the
measurement. Servers that are missing are installed into environments of their own, below ~/.cache.

    python benchmarks/serving.py [--contenders ours,triton] [--rounds 5] [--seconds 2] [--digits runs/digits-onnx]
    python benchmarks/serving.py --growth ARTIFACT --seconds 30    # ours alone: one worker and two, on images
"""

import argparse
import contextlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving_load.messages import PROTOCOLS
from serving_load.report import as_json, as_markdown
from serving_load.rounds import Measured, Point, Served, measure, write_mean, write_mlp
from serving_load.servers import STARTS, Contender, Missing
from speed.report import RESULTS, parse_names, write_text

from osa_runtime.benchmarking.machine import describe_machine

FAMILIES = {
    "ours": ("ours", "ours, no batching", "ours, 2 workers"),
    "triton": ("triton", "triton, 1 ms delay"),
    "kserve": ("kserve",),
    "mlserver": ("mlserver", "mlserver, batching"),
}
ONLY_UNDER_LOAD = ("ours, no batching", "ours, 2 workers")  # asked in binary HTTP at c = 16


def plan(models: Sequence[str], names: Sequence[str], protocols: Sequence[str] = PROTOCOLS) -> dict[Point, list[str]]:
    """The contenders that are asked at each point."""
    # protocols next to each other, because their rates are compared, too
    points = [Point(model, protocol, c) for model in models for c in (1, 16) for protocol in protocols]
    everywhere = [name for name in names if name not in ONLY_UNDER_LOAD]
    return {point: list(names) if point[1:] == ("binary", 16) else everywhere for point in points}


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


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contenders", default=",".join(FAMILIES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--digits", type=Path, default=RESULTS.parent.parent / "runs" / "digits-onnx")
    parser.add_argument("--growth", type=Path, help="measure ours alone on this model of images")
    parser.add_argument("--out", type=Path, help="without suffix; benchmarks/results/serving by default")
    options = parser.parse_args()
    families = ["ours"] if options.growth else parse_names(parser, "--contenders", options.contenders, FAMILIES)
    options.names = [name for family in families for name in FAMILIES[family]]
    artifact = options.growth or options.digits
    if not (artifact / "manifest.json").is_file():
        parser.error(f"{artifact} is not an exported model; run `make demo` first, or name one with --digits")
    options.out = options.out or RESULTS / ("serving_growth" if options.growth else "serving")
    return options


def run(options: argparse.Namespace) -> tuple[Measured, dict[str, Any]]:
    """The measurements, and their circumstances."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        small = write_mean(home / "mean") if options.growth else write_mlp(home / "mlp")
        models = [Served(small), Served((options.growth or options.digits).resolve())]
        running, missing = start(options.names, [model.folder for model in models])
        for contender in running:
            stack.push(contender.closing)
        protocols = ("binary", "json") if options.growth else PROTOCOLS
        work = plan([model.name for model in models], [contender.name for contender in running], protocols)
        measured = measure(running, models, work, options.rounds, options.seconds)
        memory = {contender.name: contender.memory() for contender in running}
    facts = {"machine": describe_machine(), "rounds": options.rounds, "seconds": options.seconds, "memory": memory}
    return measured, facts | {"missing": missing, "judged": not options.growth}


def main() -> None:
    options = parse()
    measured, facts = run(options)
    text = as_markdown(measured, facts)
    print(text)
    write_text(options.out.with_suffix(".json"), json.dumps(as_json(measured, facts), indent=1) + "\n")
    write_text(options.out.with_suffix(".md"), text)
    print(f"wrote {options.out}.json and .md")


if __name__ == "__main__":
    main()
