"""Ours, Triton, KServe and MLServer under the same load, in one run that takes turns.

All serve the same ONNX files with one ONNX Runtime thread per model: the digits model that `make demo` leaves, and an
MLP that runs in some microseconds and shows the server. All are asked by the same client, in a closed loop, and every
answer is compared with the model's. In every round each contender has a block at every point: a pause, a warm-up, the
measurement. Servers that are missing are installed into environments of their own, below ~/.cache.

    python benchmarks/serving.py [--contenders ours,triton] [--rounds 5] [--seconds 2] [--digits runs/digits-onnx]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from serving_load.contender import Contender
from serving_load.contenders import STARTS
from serving_load.environments import Missing
from serving_load.machine import describe
from serving_load.messages import PROTOCOLS
from serving_load.models import Served, write_mlp
from serving_load.report import as_json, as_markdown, draw
from serving_load.rounds import Point, measure

from osa_runtime.atomic import atomic_file

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = {
    "ours": ("ours", "ours, no batching", "ours × 2"),
    "triton": ("triton", "triton, 1 ms delay"),
    "kserve": ("kserve",),
    "mlserver": ("mlserver", "mlserver, batching"),
}
ONLY_UNDER_LOAD = ("ours, no batching", "ours × 2")  # asked in binary HTTP at c = 16


def plan(models: Sequence[str], names: Sequence[str]) -> dict[Point, list[str]]:
    """Which contenders are asked at which point."""
    points = [Point(model, protocol, c) for model in models for protocol in PROTOCOLS for c in (1, 16)]
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


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contenders", default=",".join(FAMILIES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--digits", type=Path, default=ROOT / "runs" / "digits-onnx")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "serving", help="without suffix")
    chosen = parser.parse_args()
    unknown = set(chosen.contenders.split(",")) - set(FAMILIES)
    if unknown:
        parser.error(f"--contenders has {', '.join(sorted(unknown))}; known are {', '.join(FAMILIES)}")
    if not (chosen.digits / "manifest.json").is_file():
        parser.error(f"{chosen.digits} is not an exported model; run `make demo` first, or name one with --digits")
    return chosen


def main() -> None:
    chosen = options()
    names = [name for family in chosen.contenders.split(",") for name in FAMILIES[family]]
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        models = [Served(write_mlp(home / "mlp")), Served(chosen.digits.resolve())]
        running, missing = start(names, [model.folder for model in models])
        for contender in running:
            stack.push(contender.closing)
        work = plan([model.name for model in models], [contender.name for contender in running])
        measured = measure(running, models, work, chosen.rounds, chosen.seconds)
        memory = {contender.name: contender.memory() for contender in running}
    facts = {"machine": describe(), "rounds": chosen.rounds, "seconds": chosen.seconds}
    facts |= {"memory": memory, "missing": missing}
    text = as_markdown(measured, facts)
    print(text)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(chosen.out.with_suffix(".json")) as path:
        path.write_text(json.dumps(as_json(measured, facts), indent=1) + "\n")
    with atomic_file(chosen.out.with_suffix(".md")) as path:
        path.write_text(text)
    with atomic_file(chosen.out.with_suffix(".svg")) as path:
        draw(measured, [model.name for model in models]).savefig(path, format="svg")
    print(f"wrote {chosen.out}.json, .md and .svg")


if __name__ == "__main__":
    main()
