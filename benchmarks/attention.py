"""The attention operator alone: ours, exported, against the paper's method, softmax, and the rate of one large product.

All contenders have the same inputs and threads and take turns in blocks. The exported operator runs in ONNX Runtime in
two layouts: `packed`, as in a model, where q, k and v are slices of what the projection made and the heads are merged
at the end, and `separate`, with q, k and v by head, as all the others take them. Peers that can be computed in several
ways take part with the fastest. Every answer is compared with float64.

    python benchmarks/attention.py [--rounds 15] [--threads 2] [--judge separate] [--quick] [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speed import attention_plots, attention_report, results
from speed.attention_contenders import ALL, EAGER, PAPER, SGEMM, SOFTMAX, Operators, Row
from speed.attention_inputs import HEADS, Point, make_inputs
from speed.attention_targets import verdicts
from speed.exported_operator import PACKED, SEPARATE
from speed.plots import mark_noisy

from osa_runtime.benchmarking.machine import describe_machine
from osa_runtime.benchmarking.memory import measure_memory, memory_can_be_measured

Plan = dict[Point, tuple[str, ...]]


@dataclass(frozen=True)
class Sizes:
    """``long`` has lengths beyond the grid, for ours alone; ``fine`` more lengths for the comparison with softmax."""

    widths: tuple[int, ...]
    grid: tuple[tuple[int, int], ...]
    long: tuple[int, ...]
    fine: tuple[int, ...]
    norms: tuple[float, ...]
    norm_tokens: int
    sgemm_from: int


FULL = Sizes(
    widths=(64, 32),
    grid=((1, 17), (1, 50), (1, 197), (8, 197), (1, 1024), (1, 4096), (1, 16384)),
    long=(65536,),
    fine=(32, 64, 65, 96, 128, 129, 160, 256, 320, 384, 448, 512, 640, 768),  # 2d and 2d + 1: another form begins
    norms=(0.1, 0.5, 5.0, 20.0, 100.0, 300.0, 1000.0),
    norm_tokens=197,
    sgemm_from=4096,
)
QUICK = Sizes((32,), ((1, 17), (1, 80)), (256,), (64,), (0.1, 100.0), 80, 256)


def plan(sizes: Sizes, width: int) -> Plan:
    """Which contenders meet at which point."""

    def limit(tokens: int) -> tuple[str, ...]:
        return (SGEMM,) if tokens >= sizes.sgemm_from else ()

    found: Plan = {Point(batch, tokens, width): (*ALL, *limit(tokens)) for batch, tokens in sizes.grid}
    found |= {Point(1, tokens, width): (PACKED, SEPARATE, EAGER, *limit(tokens)) for tokens in sizes.long}
    for tokens in sizes.fine:
        found.setdefault(Point(1, tokens, width), (PACKED, SEPARATE, SOFTMAX))
    for norm in sizes.norms:
        found.setdefault(Point(1, sizes.norm_tokens, width, norm), (PACKED, SEPARATE, EAGER, PAPER))
    return found


def measure_plan(operators: Operators, points: Plan, chosen: argparse.Namespace) -> list[Row]:
    rows = []
    for number, (point, names) in enumerate(points.items(), 1):
        print(f"{point}: {number} of {len(points)}", flush=True)
        rows.append(operators.measure(point, names, chosen.pace))
    return rows


def peak_memory(operators: Operators, tokens: int, layout: str, threads: int) -> dict[str, int] | None:
    """Of one sequence, in a process of its own, with the bytes of the inputs and outputs that it holds."""
    if not memory_can_be_measured():
        return None
    inputs = make_inputs(Point(1, tokens, operators.width))
    arrays = {"packed": inputs.packed} if layout == PACKED else {"q": inputs.q, "k": inputs.k, "v": inputs.v}
    feeds = {name: tensor.contiguous().numpy() for name, tensor in arrays.items()}
    job = {"contender": "artifact", "path": str(operators.artifacts[layout]), "format": "onnx", "device": "cpu"}
    grown = measure_memory({**job, "threads": threads}, [feeds])
    outputs = 4 * HEADS * tokens * operators.width
    taken = sum(array.nbytes for array in feeds.values())
    return {"tokens": tokens, "width": operators.width, "peak": grown.run[0], "inputs": taken, "outputs": outputs}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    results.add_options(parser)
    parser.add_argument("--judge", choices=("packed", "separate"), default="separate", help="the layout that is judged")
    chosen = results.checked(parser, arguments)
    chosen.judged = PACKED if chosen.judge == "packed" else SEPARATE
    return chosen


def run(chosen: argparse.Namespace, sizes: Sizes) -> tuple[list[Row], dict[str, Any]]:
    machine, rows, memory = describe_machine(), [], None
    for width in sizes.widths:
        with tempfile.TemporaryDirectory() as folder:
            operators = Operators(width, chosen.threads, Path(folder))
            rows += measure_plan(operators, plan(sizes, width), chosen)
            if memory is None:
                memory = peak_memory(operators, max(sizes.long), chosen.judged, chosen.threads)
    facts = {
        "machine": machine,
        "threads": chosen.threads,
        "rounds": chosen.pace.rounds,
        "heads": HEADS,
        "judged": chosen.judged,
        "memory": memory,
    }
    return rows, facts


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = parse(None if arguments is None else list(arguments))
    sizes = QUICK if chosen.quick else FULL
    rows, facts = run(chosen, sizes)
    judged = list(verdicts(rows, sizes.grid, facts["memory"], chosen.judged))
    pictures = {
        "Time over length": ("attention-time.svg", attention_plots.draw_lengths(rows)),
        "Times as fast, over length": ("attention-ratio.svg", attention_plots.draw_break_even(rows)),
        "Time and error over the norm": ("attention-norm.svg", attention_plots.draw_norms(rows)),
    }
    plots = {what: (file, figure) for what, (file, figure) in pictures.items() if figure is not None}
    if attention_report.doubts(rows):
        for _, figure in plots.values():
            mark_noisy(figure)
    facts["plots"] = {what: file for what, (file, _) in plots.items()}
    text = attention_report.as_markdown(rows, facts, judged)
    results.write(chosen.out, "attention", attention_report.as_json(rows, facts, judged), text, dict(plots.values()))


if __name__ == "__main__":
    main()
