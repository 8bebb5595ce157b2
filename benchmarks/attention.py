"""The attention operator alone: ours, exported, against the paper's method, softmax, and the rate of one large product.

All contenders have the same inputs and threads and take turns in blocks. The exported operator runs in ONNX Runtime in
two layouts: `packed`, as in a model, where q, k and v are slices of what the projection made and the heads are merged
at the end, and `separate`, with q, k and v by head, as all the others take them; the targets are judged by that one.
Softmax takes part with the fastest of its variants. Every answer is compared with float64.

    python benchmarks/attention.py [--rounds 15] [--threads 2] [--quick] [--out benchmarks/results]
"""

import itertools
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from speed import report
from speed.attention_contenders import (
    ALL,
    HEADS,
    PACKED,
    PAPER,
    SEPARATE,
    SGEMM,
    SOFTMAX,
    TRAINED_NORM,
    Operators,
    Point,
    share_of_sgemm,
)
from speed.contest import Row, all_doubts

from osa_runtime.plotting import legend_below, logarithmic


class Sizes(NamedTuple):
    """``fine`` has more lengths for the comparison with softmax."""

    widths: tuple[int, ...]
    grid: tuple[tuple[int, int], ...]  # (batch, tokens)
    fine: tuple[int, ...]
    sgemm_from: int


FULL = Sizes(
    widths=(64, 32),
    grid=((1, 17), (1, 50), (1, 197), (8, 197), (1, 1024), (1, 4096), (1, 16384)),
    fine=(32, 64, 65, 96, 128, 129, 160, 256, 320, 384, 448, 512, 640, 768),  # 2d and 2d + 1: another form begins
    sgemm_from=4096,
)
QUICK = Sizes((32,), ((1, 17), (1, 80)), (64,), 80)
LONG = 4096
COLOURS = dict(zip(ALL, ("#7cc4e0", "#0b6e99", "#829ab1", "#c2601a", "#7b4ea3"), strict=True))
HOW_TO_READ = (
    "Cells: milliseconds of one call (spread of the rounds, relative error against float64); ! marks a figure with a "
    "doubt. *ours, packed* takes the array that a layer's projection makes and merges the heads at the end, as a model "
    "runs it; *separate* takes q, k and v by head, as the others do.\n"
)


def plan(sizes: Sizes, width: int) -> dict[Point, tuple[str, ...]]:
    """The contenders at each point."""
    found: dict[Point, tuple[str, ...]] = {}
    for batch, tokens in sizes.grid:
        found[Point(batch, tokens, width)] = (*ALL, *[SGEMM] * (tokens >= sizes.sgemm_from))
    for tokens in sizes.fine:
        found.setdefault(Point(1, tokens, width), (PACKED, SEPARATE, SOFTMAX))
    return found


def verdicts(rows: Sequence[Row], grid: Sequence[tuple[int, int]]) -> Iterator[report.Verdict]:
    by_place = {row.place: row for row in rows}
    places = [Point(*place, width) for width in _widths(rows) for place in grid]
    found = {point: by_place[point].contest.ratio(SEPARATE, PAPER) for point in places if point in by_place}
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
        ratio = row and row.contest.ratio(SEPARATE, SOFTMAX)
        yield report.judge(
            f"softmax in ONNX Runtime, {tokens} tokens, d = {width}: {times:g} × as fast", ratio, least=times
        )
    for width, most in ((64, 450), (32, 200)):
        yield _break_even(softmax_ratios(rows, width, SEPARATE), width, most)
    long = [row for row in rows if row.place.tokens >= LONG and row.place.width == 64]
    shares = {row.place.tokens: share.median for row in long if (share := share_of_sgemm(row, SEPARATE))}
    text = ", ".join(f"{share:.0%} at {tokens}" for tokens, share in sorted(shares.items()))
    target = f"65 % of the rate of one large sgemm from {LONG} tokens on, d = 64"
    yield report.judge(target, min(shares.values(), default=None), text, 0.65)


def _break_even(ratios: Mapping[int, float], width: int, most: int) -> report.Verdict:
    target = f"faster than softmax in ONNX Runtime beyond {most} tokens, d = {width}"
    if not ratios or max(ratios) < most:
        return report.Verdict(target)
    found = break_even(ratios)
    beyond = "never" if found is None else f"beyond {found:.0f}"
    return report.Verdict(target, f"{beyond}; {describe_ranges(ratios)}", found is not None and found <= most)


def softmax_ratios(rows: Sequence[Row], width: int, ours: str) -> dict[int, float]:
    """Times as fast as softmax, by length, at a batch of 1."""
    of_width = [row for row in rows if (row.place.batch, row.place.width) == (1, width)]
    found = {row.place.tokens: row.contest.ratio(ours, SOFTMAX) for row in of_width}
    return {tokens: ratio.median for tokens, ratio in found.items() if ratio is not None}


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
    about = f"6 heads, float32, ‖S‖₂ = {TRAINED_NORM:g}.\n"
    by_width = {width: sorted((row for row in rows if row.place.width == width), key=_place) for width in _widths(rows)}
    sections = [HOW_TO_READ]
    for width, of_width in by_width.items():
        sections += [f"## d = {width}\n", _grid(of_width)]
        for ours in (PACKED, SEPARATE):
            sections.append(f"Against {ours}, {describe_ranges(softmax_ratios(rows, width, ours))}.\n")
    wrong = [f"- {row.place}: {name}, off by {error:.1e}\n" for row in rows for name, error in row.wrong.items()]
    sections += ["## Wrong answers, which have no time\n", *wrong] if wrong else []
    doubts = all_doubts({str(row.place): row.contest for row in rows})
    content = {"rows": [as_dict(row) for row in rows]}
    plot = report.Plot("Time over length", (5.2 * len(by_width), 4.4), partial(draw_lengths, by_width))
    plots = {"attention-time.svg": plot}
    return report.Report("attention", "The attention operator", facts, doubts, content, sections, judged, plots, about)


def as_dict(row: Row) -> dict[str, Any]:
    return {**row.place._asdict(), **row.contest.as_dict(error=row.errors, variant=row.variants), "wrong": row.wrong}


def _place(row: Row) -> Point:
    return row.place


def _widths(rows: Sequence[Row]) -> list[int]:
    return sorted({row.place.width for row in rows}, reverse=True)


def _grid(rows: Sequence[Row]) -> str:
    peers = {"× paper": PAPER, "× softmax": SOFTMAX}
    cells = []
    for row in rows:
        times = [report.time_cell(row.contest, name, row.errors.get(name)) for name in ALL]
        ratios = [report.ratio_cell(row.contest, SEPARATE, peer) for peer in peers.values()]
        cells.append([str(row.place.batch), str(row.place.tokens), *times, *ratios])
    return report.table(["batch", "tokens", *ALL, *peers], cells)


def draw_lengths(by_width: Mapping[int, Sequence[Row]], figure: Any) -> None:
    """Time over length at a batch of 1, a panel for each width."""
    panels = figure.subplots(1, len(by_width), squeeze=False, sharey=True)[0]
    for axes, (width, rows) in zip(panels, by_width.items(), strict=True):
        for name, colour in COLOURS.items():
            measured = [row for row in rows if row.place.batch == 1 and name in row.contest]
            x, spreads = [row.place.tokens for row in measured], [row.contest.milliseconds(name) for row in measured]
            axes.plot(x, [s.median for s in spreads], marker="o", ms=3.5, color=colour, label=name)
            axes.fill_between(x, [s.p10 for s in spreads], [s.p90 for s in spreads], color=colour, alpha=0.2, lw=0)
        logarithmic(axes.xaxis, (17, 50, 197, 1024, 4096, 16384), subs=(1.0,))
        logarithmic(axes.yaxis, subs=(1.0, 3.0))
        axes.set_title(f"milliseconds, batch 1, 6 heads, d = {width}")
        axes.set_xlabel("tokens")
    legend_below(figure, panels[0])


def main(arguments: Sequence[str] | None = None) -> None:
    options = report.parse(report.parser_of(__doc__), arguments)
    sizes, rows = QUICK if options.quick else FULL, list[Row]()
    for width in sizes.widths:
        with tempfile.TemporaryDirectory() as folder:
            operators = Operators(width, options.threads, Path(folder))
            points = plan(sizes, width)
            for number, (point, names) in enumerate(points.items(), 1):
                print(f"{point}: {number} of {len(points)}", flush=True)
                rows.append(operators.measure(point, names, options.pace))
    facts = report.facts_of(options, heads=HEADS, judged=SEPARATE)
    build_report(rows, facts, list(verdicts(rows, sizes.grid))).write(options.out)


if __name__ == "__main__":
    main()
