"""Ours, Triton, KServe and MLServer under the same load, in one run that takes turns.

All serve the same ONNX files with one ONNX Runtime thread per model: the digits model that `make demo` leaves, and an
MLP that runs in some microseconds and shows the server. All are asked by the same client, in a closed loop, and every
answer is compared with the model's. In every round each contender has a block at every point: a pause, a warm-up, the
measurement. Servers that are missing are installed into environments of their own, below ~/.cache.

    python benchmarks/serving.py [--contenders ours,triton] [--rounds 5] [--seconds 2] [--digits runs/digits-onnx]
    python benchmarks/serving.py --growth ARTIFACT --seconds 30    # ours alone: one worker and two, binary and JSON
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving_load.contender import Contender
from serving_load.contenders import STARTS
from serving_load.environments import Missing
from serving_load.machine import describe
from serving_load.messages import PROTOCOLS
from serving_load.models import Served, write_mean, write_mlp
from serving_load.report import as_json, as_markdown, draw
from serving_load.rounds import Measured, Point, measure

from osa_runtime.atomic import atomic_file

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = {
    "ours": ("ours", "ours, no batching", "ours, 2 workers"),
    "triton": ("triton", "triton, 1 ms delay"),
    "kserve": ("kserve",),
    "mlserver": ("mlserver", "mlserver, batching"),
}
ONLY_UNDER_LOAD = ("ours, no batching", "ours, 2 workers")  # asked in binary HTTP at c = 16


def growth_plan(models: Sequence[str]) -> dict[Point, list[str]]:
    """Images are larger than a frame of HTTP/2, so that our gRPC client does not ask about them."""
    points = {("binary", 1): ["ours"], ("binary", 16): ["ours", "ours, 2 workers"], ("json", 1): ["ours"]}
    return {Point(model, *point): names for model in models for point, names in points.items()}


def plan(models: Sequence[str], names: Sequence[str]) -> dict[Point, list[str]]:
    """Which contenders are asked at which point."""
    # protocols next to each other, because their rates are compared, too
    points = [Point(model, protocol, c) for model in models for c in (1, 16) for protocol in PROTOCOLS]
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
    parser.add_argument("--growth", type=Path, help="measure ours alone on this model of images")
    parser.add_argument("--out", type=Path, help="without suffix; benchmarks/results/serving unless you say otherwise")
    chosen = parser.parse_args()
    unknown = set(chosen.contenders.split(",")) - set(FAMILIES)
    if unknown:
        parser.error(f"--contenders has {', '.join(sorted(unknown))}; known are {', '.join(FAMILIES)}")
    artifact = chosen.growth or chosen.digits
    if not (artifact / "manifest.json").is_file():
        parser.error(f"{artifact} is not an exported model; run `make demo` first, or name one with --digits")
    chosen.out = chosen.out or ROOT / "benchmarks" / "results" / ("serving_growth" if chosen.growth else "serving")
    return chosen


def run(chosen: argparse.Namespace) -> tuple[Measured, dict[str, Any]]:
    """What was measured, and under which circumstances."""
    names = [name for family in chosen.contenders.split(",") for name in FAMILIES[family]]
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if chosen.growth:
            names = ["ours", "ours, 2 workers"]
            models = [Served(write_mean(home / "mean")), Served(chosen.growth.resolve())]
        else:
            models = [Served(write_mlp(home / "mlp")), Served(chosen.digits.resolve())]
        running, missing = start(names, [model.folder for model in models])
        for contender in running:
            stack.push(contender.closing)
        served = [model.name for model in models]
        work = growth_plan(served) if chosen.growth else plan(served, [contender.name for contender in running])
        measured = measure(running, models, work, chosen.rounds, chosen.seconds)
        memory = {contender.name: contender.memory() for contender in running}
    facts = {"machine": describe(), "rounds": chosen.rounds, "seconds": chosen.seconds, "memory": memory}
    return measured, facts | {"missing": missing, "judged": not chosen.growth}


def main() -> None:
    chosen = options()
    measured, facts = run(chosen)
    text = as_markdown(measured, facts)
    print(text)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(chosen.out.with_suffix(".json")) as path:
        path.write_text(json.dumps(as_json(measured, facts), indent=1) + "\n")
    with atomic_file(chosen.out.with_suffix(".md")) as path:
        path.write_text(text)
    with atomic_file(chosen.out.with_suffix(".svg")) as path:
        draw(measured, list(measured.runs)).savefig(path, format="svg")
    print(f"wrote {chosen.out}.json, .md and .svg")


if __name__ == "__main__":
    main()
