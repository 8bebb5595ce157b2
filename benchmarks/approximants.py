"""Which approximant and which form, where: our operator in eager against the paper's QR + matrix_exp.

Contenders take turns in blocks (a pause, a warm-up, several calls), because thread pools keep spinning after a call and
alternating single calls would measure each other. Figures are medians over blocks; ratios are against the paper's
method, higher is faster; beside each its error against float64.

    python benchmarks/approximants.py [--blocks 7] [--calls 5] [--out benchmarks/results/approximants.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from osa_runtime.ops import orthogonal_attention
from osa_runtime.ops.reference import paper_attention

HEADS, NORM = 6, 2.0
POINTS = [(1, 17, 64), (1, 50, 64), (1, 197, 64), (1, 1024, 64), (1, 197, 32), (1, 1024, 32), (8, 197, 64)]


def contender(form: str, approximant: str) -> Callable[..., Tensor]:
    return lambda q, k, v, c: orthogonal_attention(q, k, v, c, form=form, approximant=approximant)


CONTENDERS: dict[str, Callable[..., Tensor]] = {
    "paper": paper_attention,
    "dense taylor": contender("dense", "taylor"),
    "dense pade": contender("dense", "pade"),
    "lowrank taylor": contender("lowrank", "taylor"),
    "lowrank pade": contender("lowrank", "pade"),
    "auto": contender("auto", "taylor"),
}


def inputs(batch: int, tokens: int, width: int) -> tuple[Tensor, Tensor, Tensor, float]:
    generator = torch.Generator().manual_seed(tokens + width)
    q, k, v = (torch.randn(batch, HEADS, tokens, width, generator=generator) for _ in range(3))
    exact = q.double() @ k.double().mT
    return q, k, v, NORM / float(torch.linalg.matrix_norm(exact - exact.mT, 2).max())


def block(run: Callable[[], Tensor], calls: int) -> float:
    time.sleep(0.05)
    run()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def measure(point: tuple[int, int, int], blocks: int, calls: int) -> list[dict[str, object]]:
    arguments = inputs(*point)
    exact = paper_attention(*(x.double() for x in arguments[:3]), arguments[3])
    names = [name for name in CONTENDERS if not (name.startswith("dense") and point[1] > 300)]
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(blocks):
        for name in names:
            times[name].append(block(lambda name=name: CONTENDERS[name](*arguments), calls))
    base = statistics.median(times["paper"])
    rows = []
    for name in names:
        median, result = statistics.median(times[name]), CONTENDERS[name](*arguments).double()
        rows.append(
            {
                "batch": point[0], "tokens": point[1], "width": point[2], "contender": name,
                "milliseconds": 1e3 * median, "ratio": base / median,
                "spread": (max(times[name]) - min(times[name])) / median,
                "error": float((result - exact).norm() / exact.norm()),
            }
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "approximants.json")
    options = parser.parse_args()
    rows = []
    print(f"{'batch tokens width':>18}  {'contender':<15} {'ms':>8} {'ratio':>6} {'spread':>6}  error")
    with torch.no_grad():
        for point in POINTS:
            for row in measure(point, options.blocks, options.calls):
                rows.append(row)
                where = "{batch:>5} {tokens:>6} {width:>5}".format(**row)
                figures = "{milliseconds:8.2f} {ratio:6.2f} {spread:6.2f}  {error:.1e}".format(**row)
                wide = "  spread too wide: repeat on a quieter machine" if float(str(row["spread"])) > 0.5 else ""
                print(f"{where:>18}  {row['contender']:<15} {figures}{wide}", flush=True)
    machine = {"processor": platform.processor(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": machine, "norm": NORM, "rows": rows}, indent=2) + "\n")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
