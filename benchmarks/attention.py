"""The attention operator alone: ours, exported, against the paper's method, softmax, and the rate of one large product.

All contenders have the same inputs and threads and take turns in blocks. The exported operator runs in ONNX Runtime in
two layouts: `packed`, as in a model, where q, k and v are slices of what the projection made and the heads are merged
at the end, and `separate`, with q, k and v by head, as all the others take them. Peers that can be computed in several
variants take part with the fastest. Every answer is compared with float64.

    python benchmarks/attention.py [--rounds 15] [--threads 2] [--judge separate] [--quick] [--out benchmarks/results]
"""

import itertools
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from speed import attention_contenders as contenders
from speed import report
from speed.attention_contenders import EAGER, PACKED, PAPER, SEPARATE, SGEMM, SOFTMAX, TRAINED_NORM, Operators, Point
from speed.contest import Row, all_doubts

from osa_runtime.benchmarking.memory import measure_memory, memory_can_be_measured
from osa_runtime.plotting import legend_below, logarithmic


class Sizes(NamedTuple):
    """``long`` has lengths beyond the grid, for ours alone; ``fine`` more lengths for the comparison with softmax."""

    widths: tuple[int, ...]
    grid: tuple[tuple[int, int], ...]  # (batch, tokens)
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
LONG, LONGEST = 4096, 65536
SWEPT = (PACKED, SEPARATE, EAGER, PAPER)
COLOURS = dict(
    zip(
        (*SWEPT, SOFTMAX, contenders.SDPA),
        ("#0b6e99", "#7cc4e0", "#829ab1", "#c2601a", "#7b4ea3", "#b79ad0"),
        strict=True,
    )
)
HOW_TO_READ = (
    "Cells: milliseconds of one call (spread of the rounds, relative error against float64); ! marks a figure with a "
    "doubt. *ours, packed* takes the array that a layer's projection makes and merges the heads at the end, as a model "
    "runs it; *separate* takes q, k and v by head, as the others do.\n"
)


def plan(sizes: Sizes, width: int) -> dict[Point, tuple[str, ...]]:
    """The contenders at each point."""
    found = {Point(batch, tokens, width): contenders.ALL for batch, tokens in sizes.grid}
    found |= {Point(1, tokens, width): (PACKED, SEPARATE, EAGER) for tokens in sizes.long}
    found = {point: (*names, *[SGEMM] * (point.tokens >= sizes.sgemm_from)) for point, names in found.items()}
    for tokens in sizes.fine:
        found.setdefault(Point(1, tokens, width), (PACKED, SEPARATE, SOFTMAX))
    for norm in sizes.norms:
        found.setdefault(Point(1, sizes.norm_tokens, width, norm), SWEPT)
    return found


def peak_memory(operators: Operators, tokens: int, layout: str, threads: int) -> dict[str, int] | None:
    """The memory for one sequence, in a process of its own, with the bytes of the inputs and outputs that it holds."""
    if not memory_can_be_measured():
        return None
    inputs = contenders.make_inputs(Point(1, tokens, operators.width))
    arrays = {"packed": inputs.packed} if layout == PACKED else inputs.by_head
    feeds = {name: tensor.contiguous().numpy() for name, tensor in arrays.items()}
    job = {"contender": "artifact", "path": str(operators.artifacts[layout]), "format": "onnx", "device": "cpu"}
    peak = measure_memory({**job, "threads": threads}, [feeds]).run[0]
    sizes = {"inputs": sum(array.nbytes for array in feeds.values()), "outputs": inputs.v.nbytes}
    return {"tokens": tokens, "width": operators.width, "peak": peak, **sizes}


def verdicts(
    rows: Sequence[Row], grid: Sequence[tuple[int, int]], memory: Mapping[str, int] | None, ours: str
) -> Iterator[report.Verdict]:
    """``memory`` is of the longest sequence; ``ours`` is the layout that is judged."""
    by_place = {row.place: row for row in rows}
    places = [Point(*place, width) for width in _widths(rows) for place in grid]
    found = {point: by_place[point].contest.ratio(ours, PAPER) for point in places if point in by_place}
    ratios = {point: ratio.median for point, ratio in found.items() if ratio is not None}
    complete = len(ratios) == len(places) > 0
    least = min(ratios, key=lambda point: ratios[point]) if complete else None
    paper = "the paper's method in eager:"
    yield report.judge(
        f"{paper} 4 × as fast at every point of the grid", least and ratios[least], f"{{:.2f}} × at least ({least})", 4
    )
    geometric = math.prod(ratios.values()) ** (1 / len(ratios)) if complete else None
    yield report.judge(f"{paper} 6 × in the geometric mean", geometric, least=6)
    for width, tokens, times in ((64, 1024, 2.5), (64, LONG, 12.0), (32, LONG, 25.0)):
        row = by_place.get(Point(1, tokens, width))
        ratio = row and row.contest.ratio(ours, SOFTMAX)
        yield report.judge(
            f"softmax in ONNX Runtime, {tokens} tokens, d = {width}: {times:g} × as fast", ratio, least=times
        )
    for width, most in ((64, 450), (32, 200)):
        yield _break_even(softmax_ratios(rows, width, ours), width, most)
    long = [row for row in rows if row.place.tokens >= LONG and row.place.width == 64]
    shares = {row.place.tokens: share.median for row in long if (share := contenders.share_of_sgemm(row, ours))}
    text = ", ".join(f"{share:.0%} at {tokens}" for tokens, share in sorted(shares.items()))
    target = f"65 % of the rate of one large sgemm from {LONG} tokens on, d = 64"
    yield report.judge(target, min(shares.values(), default=None), text, 0.65)
    power = growth_exponent(by_place.get(Point(1, LONG, 64)), by_place.get(Point(1, LONGEST, 64)), ours)
    target = f"time grows with length^1.05 at most, {LONG} to {LONGEST} tokens, d = 64"
    yield report.judge(target, power, "length^{:.3f}", most=1.05)
    longest = memory if memory and memory["tokens"] == LONGEST else None
    without = (longest["peak"] - longest["inputs"] - longest["outputs"]) / report.MIB if longest else 0
    text = f"{{:.0f}} MiB with inputs and outputs, {without:.0f} MiB without"
    target = f"less than 1 GiB of memory at {LONGEST} tokens, d = 64"
    yield report.judge(target, longest and longest["peak"] / report.MIB, text, most=1024)


def _break_even(ratios: Mapping[int, float], width: int, most: int) -> report.Verdict:
    target = f"faster than softmax in ONNX Runtime beyond {most} tokens, d = {width}"
    if not ratios or max(ratios) < most:
        return report.Verdict(target)
    found = break_even(ratios)
    beyond = "never" if found is None else f"beyond {found:.0f}"
    return report.Verdict(target, f"{beyond}; {describe_ranges(ratios)}", found is not None and found <= most)


def softmax_ratios(rows: Sequence[Row], width: int, ours: str) -> dict[int, float]:
    """Times as fast as softmax, by length, at a batch of 1."""
    of_width = [row for row in rows if (row.place.batch, row.place.width, row.place.norm) == (1, width, TRAINED_NORM)]
    found = {row.place.tokens: row.contest.ratio(ours, SOFTMAX) for row in of_width}
    return {tokens: ratio.median for tokens, ratio in found.items() if ratio is not None}


def growth_exponent(short: Row | None, long: Row | None, ours: str) -> float | None:
    """b where the time grows with length to the power of b."""
    if short is None or long is None or ours not in short.contest or ours not in long.contest:
        return None
    times = [row.contest.milliseconds(ours).median for row in (short, long)]
    return math.log(times[1] / times[0]) / math.log(long.place.tokens / short.place.tokens)


def losing_ranges(ratios: Mapping[int, float]) -> list[tuple[float, float]]:
    """The ranges of lengths in which the ratio is below 1.

    Between neighbouring lengths the logarithm of the ratio is taken to be linear in that of the length. A range that
    begins at the shortest, or ends at the longest length that was measured, may go on beyond it.
    """
    lengths = sorted(ratios)
    edges = [float(lengths[0])] if ratios[lengths[0]] < 1 else []
    for low, high in itertools.pairwise(lengths):
        if (ratios[low] < 1) != (ratios[high] < 1):
            part = math.log(ratios[low]) / math.log(ratios[low] / ratios[high])
            edges.append(low * (high / low) ** part)
    edges += [float(lengths[-1])] if ratios[lengths[-1]] < 1 else []
    return list(zip(edges[::2], edges[1::2], strict=True))


def break_even(ratios: Mapping[int, float]) -> float | None:
    """The length beyond which the ratio stays above 1; None where it does not at the longest length."""
    ranges = losing_ranges(ratios)
    if not ranges:
        return float(min(ratios))
    return None if ratios[max(ratios)] < 1 else ranges[-1][1]


def describe_ranges(ratios: Mapping[int, float]) -> str:
    """The lengths at which softmax wins, in words."""
    if not ratios:
        return "not measured"
    spans = [
        f"{low:.0f} to {high:.0f}" if round(low) != round(high) else f"{low:.0f}" for low, high in losing_ranges(ratios)
    ]
    if not spans:
        return f"softmax wins nowhere from {min(ratios)} to {max(ratios)} tokens"
    return f"softmax wins at {', '.join(spans)} tokens (of {min(ratios)} to {max(ratios)})"


def build_report(rows: Sequence[Row], facts: Mapping[str, Any], judged: Sequence[report.Verdict]) -> report.Report:
    trained = [row for row in rows if row.place.norm == TRAINED_NORM]
    about = f"6 heads, float32, ‖S‖₂ = {TRAINED_NORM:g} unless it says otherwise. Judged: {facts['judged']}.\n"
    sections = [HOW_TO_READ]
    for width in _widths(trained):
        of_width = [row for row in trained if row.place.width == width]
        sections += [f"## d = {width}\n", _grid(of_width, facts["judged"])]
        for ours in (PACKED, SEPARATE):
            sections.append(f"Against {ours}, {describe_ranges(softmax_ratios(of_width, width, ours))}.\n")
        sections.append(_rates(of_width))
    sections += [_norms([row for row in rows if row.place.width == width]) for width in _widths(rows)]
    sections += [_wrong(rows), _memory(facts["memory"])]
    doubts = all_doubts({str(row.place): row.contest for row in rows})
    content = {"rows": [as_dict(row) for row in rows]}
    single = sorted((row for row in trained if row.place.batch == 1), key=lambda row: row.place)
    by_width = {width: [row for row in single if row.place.width == width] for width in _widths(trained)}
    plot = report.Plot("Time over length", (5.2 * len(by_width), 4.4), partial(draw_lengths, by_width))
    plots = {"attention-time.svg": plot}
    return report.Report("attention", "The attention operator", facts, doubts, content, sections, judged, plots, about)


def as_dict(row: Row) -> dict[str, Any]:
    return {**row.place._asdict(), **row.contest.as_dict(error=row.errors, variant=row.variants), "wrong": row.wrong}


def _widths(rows: Sequence[Row]) -> list[int]:
    return sorted({row.place.width for row in rows}, reverse=True)


def _times(row: Row, names: Sequence[str]) -> list[str]:
    return [report.time_cell(row.contest, name, row.errors.get(name)) for name in names]


def _grid(rows: Sequence[Row], ours: str) -> str:
    peers = {"× paper": PAPER, "× matrix_exp": contenders.DENSE, "× softmax": SOFTMAX}
    cells = []
    for row in sorted(rows, key=lambda row: row.place):
        ratios = [report.ratio_cell(row.contest, ours, peer) for peer in peers.values()]
        cells.append([str(row.place.batch), str(row.place.tokens), *_times(row, contenders.ALL), *ratios])
    return report.table(["batch", "tokens", *contenders.ALL, *peers], cells)


def _rates(rows: Sequence[Row]) -> str:
    cells = []
    for row in (row for row in rows if SGEMM in row.contest):
        shares = [contenders.share_of_sgemm(row, ours) for ours in (PACKED, SEPARATE)]
        limit = contenders.SGEMM_FLOPS / row.contest.milliseconds(SGEMM).median / 1e6
        shown = ["–" if share is None else f"{share.median:.0%}" for share in shares]
        flops = contenders.minimal_flops(row.place) / 1e9
        cells.append([str(row.place.tokens), f"{flops:.2f}", f"{limit:.0f}", *shown])
    head = ["tokens", "least GFLOP", "sgemm, GFLOP/s", f"{PACKED}: share of it", f"{SEPARATE}: share of it"]
    return report.table(head, cells) if cells else ""


def _norms(rows: Sequence[Row]) -> str:
    """The sweep over ‖S‖, with the row of the trained norm between."""
    lengths = {row.place.tokens for row in rows if row.place.norm != TRAINED_NORM}
    swept = sorted((r for r in rows if r.place.tokens in lengths and r.place.batch == 1), key=lambda r: r.place.norm)
    if not swept:
        return ""
    cells = [[f"{row.place.norm:g}", *_times(row, SWEPT)] for row in swept]
    title = f"## ‖S‖₂ at {swept[0].place.tokens} tokens, d = {swept[0].place.width}\n"
    return f"{title}\n{report.table(['‖S‖₂', *SWEPT], cells)}"


def _wrong(rows: Sequence[Row]) -> str:
    found = [(row.place, *item) for row in rows for item in row.wrong.items()]
    lines = [
        f"- {place}: {name} has a relative error of {error:.1e} and therefore no time" for place, name, error in found
    ]
    return "\n".join(["## Wrong answers\n", *lines]) + "\n" if lines else ""


def _memory(memory: Mapping[str, int] | None) -> str:
    if memory is None:
        return ""
    sizes = {name: report.three_digits(value / report.MIB) for name, value in memory.items()}
    return (
        f"## Memory\n\nAt {memory['tokens']} tokens, d = {memory['width']}, a process of its own grew by at most "
        f"{sizes['peak']} MiB from before it loaded the session; inputs are {sizes['inputs']} MiB of that, outputs "
        f"{sizes['outputs']} MiB.\n"
    )


def draw_lengths(by_width: Mapping[int, Sequence[Row]], figure: Any) -> None:
    """Time over length, a panel for each width."""
    panels = figure.subplots(1, len(by_width), squeeze=False, sharey=True)[0]
    for axes, (width, rows) in zip(panels, by_width.items(), strict=True):
        for name, colour in COLOURS.items():
            found = {row.place.tokens: row.contest.milliseconds(name) for row in rows if name in row.contest}
            x, spreads = list(found), list(found.values())
            axes.plot(x, [s.median for s in spreads], marker="o", ms=3.5, color=colour, label=name)
            axes.fill_between(x, [s.p10 for s in spreads], [s.p90 for s in spreads], color=colour, alpha=0.2, lw=0)
        logarithmic(axes.xaxis, (17, 50, 197, 1024, 4096, 16384, 65536), subs=(1.0,))
        logarithmic(axes.yaxis, subs=(1.0, 3.0))
        axes.set_title(f"milliseconds, batch 1, 6 heads, d = {width}")
        axes.set_xlabel("tokens")
    legend_below(figure, panels[0])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = report.parser_of(__doc__)
    parser.add_argument("--judge", choices=("packed", "separate"), default="separate", help="the layout that is judged")
    options = report.parse(parser, arguments)
    judged, sizes = PACKED if options.judge == "packed" else SEPARATE, QUICK if options.quick else FULL
    facts, rows, memory = report.facts_of(options, heads=contenders.HEADS, judged=judged), list[Row](), None
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
