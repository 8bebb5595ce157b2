"""The attention operator alone: ours, exported, against the paper's method, softmax, and the rate of one large product.

All contenders have the same inputs and threads and take turns in blocks. The exported operator runs in ONNX Runtime in
two layouts: `packed`, as in a model, where q, k and v are slices of what the projection made and the heads are merged
at the end, and `separate`, with q, k and v by head, as all the others take them. Peers that can be computed in several
ways take part with the fastest. Every answer is compared with float64.

    python benchmarks/attention.py [--rounds 15] [--threads 2] [--judge separate] [--quick] [--out benchmarks/results]
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from speed.attention_contenders import (
    ALL,
    EAGER,
    HEADS,
    PACKED,
    PAPER,
    SEPARATE,
    SGEMM,
    SOFTMAX,
    Operators,
    Point,
    make_inputs,
)
from speed.attention_report import build_report, verdicts
from speed.contest import Row
from speed.report import facts_of, parse, parser_of

from osa_runtime.benchmarking.memory import measure_memory, memory_can_be_measured


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


def plan(sizes: Sizes, width: int) -> dict[Point, tuple[str, ...]]:
    """The contenders at each point."""
    found = {Point(batch, tokens, width): ALL for batch, tokens in sizes.grid}
    found |= {Point(1, tokens, width): (PACKED, SEPARATE, EAGER) for tokens in sizes.long}
    found = {point: (*names, *[SGEMM] * (point.tokens >= sizes.sgemm_from)) for point, names in found.items()}
    for tokens in sizes.fine:
        found.setdefault(Point(1, tokens, width), (PACKED, SEPARATE, SOFTMAX))
    for norm in sizes.norms:
        found.setdefault(Point(1, sizes.norm_tokens, width, norm), (PACKED, SEPARATE, EAGER, PAPER))
    return found


def peak_memory(operators: Operators, tokens: int, layout: str, threads: int) -> dict[str, int] | None:
    """Of one sequence, in a process of its own, with the bytes of the inputs and outputs that it holds."""
    if not memory_can_be_measured():
        return None
    inputs = make_inputs(Point(1, tokens, operators.width))
    arrays = {"packed": inputs.packed} if layout == PACKED else inputs.by_head
    feeds = {name: tensor.contiguous().numpy() for name, tensor in arrays.items()}
    job = {"contender": "artifact", "path": str(operators.artifacts[layout]), "format": "onnx", "device": "cpu"}
    peak = measure_memory({**job, "threads": threads}, [feeds]).run[0]
    sizes = {"inputs": sum(array.nbytes for array in feeds.values()), "outputs": 4 * HEADS * tokens * operators.width}
    return {"tokens": tokens, "width": operators.width, "peak": peak, **sizes}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--judge", choices=("packed", "separate"), default="separate", help="the layout that is judged")
    options = parse(parser, arguments)
    judged, sizes = PACKED if options.judge == "packed" else SEPARATE, QUICK if options.quick else FULL
    facts, rows, memory = facts_of(options, heads=HEADS, judged=judged), list[Row](), None
    for width in sizes.widths:
        with tempfile.TemporaryDirectory() as folder:
            operators = Operators(width, options.threads, Path(folder))
            points = plan(sizes, width)
            for number, (point, names) in enumerate(points.items(), 1):
                print(f"{point}: {number} of {len(points)}", flush=True)
                rows.append(operators.measure(point, names, options.pace))
            memory = memory or peak_memory(operators, max(sizes.long), judged, options.threads)
    found = list(verdicts(rows, sizes.grid, memory, judged))
    build_report(rows, facts | {"memory": memory}, found).write(options.out)


if __name__ == "__main__":
    main()
