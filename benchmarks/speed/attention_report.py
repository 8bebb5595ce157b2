"""The targets, tables and figure of the operator benchmark, and the lengths at which softmax is faster."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from osa_runtime.benchmarking.result import Percentiles, block_medians, spread_of
from osa_runtime.plotting import legend_below, logarithmic
from speed.attention_contenders import (
    ALL,
    DENSE,
    EAGER,
    PACKED,
    PAPER,
    SDPA,
    SEPARATE,
    SGEMM,
    SGEMM_FLOPS,
    SOFTMAX,
    TRAINED_NORM,
    Point,
    minimal_flops,
)
from speed.contest import Row
from speed.report import MIB, Plot, Report, Verdict, at_least, ratio_cell, table, three_digits, time_cell

LONG, LONGEST = 4096, 65536


def verdicts(
    rows: Sequence[Row], grid: Sequence[tuple[int, int]], memory: Mapping[str, int] | None, ours: str
) -> Iterator[Verdict]:
    """``grid`` has (batch, tokens); ``memory`` is of the longest sequence; ``ours`` is the layout that is judged."""
    by_place = {row.place: row for row in rows}
    widths = sorted({row.place.width for row in rows}, reverse=True)
    yield from _against_paper([by_place.get(Point(*place, width)) for width in widths for place in grid], ours)
    for width, tokens, least in ((64, 1024, 2.5), (64, LONG, 12.0), (32, LONG, 25.0)):
        row = by_place.get(Point(1, tokens, width))
        found = row.contest.ratio(ours, SOFTMAX) if row else None
        yield at_least(f"softmax in ONNX Runtime, {tokens} tokens, d = {width}: {least:g} × as fast", least, found)
    for width, most in ((64, 450), (32, 200)):
        yield _break_even(softmax_ratios(rows, width, ours), width, most)
    target = f"65 % of the rate of one large sgemm from {LONG} tokens on, d = 64"
    long = [row for row in rows if row.place.tokens >= LONG and row.place.width == 64]
    shares = {row.place.tokens: share.median for row in long if (share := share_of_sgemm(row, ours))}
    text = ", ".join(f"{share:.0%} at {tokens}" for tokens, share in sorted(shares.items()))
    yield Verdict(target, text, min(shares.values()) >= 0.65) if shares else Verdict(target)
    target = f"time grows with length^1.05 at most, {LONG} to {LONGEST} tokens, d = 64"
    power = growth_exponent(by_place.get(Point(1, LONG, 64)), by_place.get(Point(1, LONGEST, 64)), ours)
    yield Verdict(target) if power is None else Verdict(target, f"length^{power:.3f}", power <= 1.05)
    target = f"less than 1 GiB of memory at {LONGEST} tokens, d = 64"
    if memory is None or memory["tokens"] != LONGEST:
        yield Verdict(target)
    else:
        whole, without = memory["peak"], memory["peak"] - memory["inputs"] - memory["outputs"]
        text = f"{whole / MIB:.0f} MiB with inputs and outputs, {without / MIB:.0f} MiB without"
        yield Verdict(target, text, whole < 1024 * MIB)


def softmax_ratios(rows: Sequence[Row], width: int, ours: str) -> dict[int, float]:
    """Times as fast as softmax, by length, at a batch of 1."""
    of_width = [row for row in rows if (row.place.batch, row.place.width, row.place.norm) == (1, width, TRAINED_NORM)]
    found = {row.place.tokens: row.contest.ratio(ours, SOFTMAX) for row in of_width}
    return {tokens: ratio.median for tokens, ratio in found.items() if ratio is not None}


def share_of_sgemm(row: Row, ours: str) -> Percentiles | None:
    """The rate over the minimal operations, relative to the rate of one large product in the same rounds."""
    if ours not in row.contest or SGEMM not in row.contest:
        return None
    rate = minimal_flops(row.place) / block_medians(row.contest.blocks[ours])
    return spread_of(rate * block_medians(row.contest.blocks[SGEMM]) / SGEMM_FLOPS)


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
    ranges = losing_ranges(ratios)
    if not ranges:
        return f"softmax wins nowhere from {min(ratios)} to {max(ratios)} tokens"
    spans = [f"{low:.0f} to {high:.0f}" if round(low) != round(high) else f"{low:.0f}" for low, high in ranges]
    return f"softmax wins at {', '.join(spans)} tokens (of {min(ratios)} to {max(ratios)})"


def _against_paper(rows: Sequence[Row | None], ours: str) -> Iterator[Verdict]:
    each = "the paper's method in eager: 4 × as fast at every point of the grid"
    mean = "the paper's method in eager: 6 × in the geometric mean"
    ratios = {row.place: row.contest.ratio(ours, PAPER) for row in rows if row is not None}
    found = {point: ratio.median for point, ratio in ratios.items() if ratio is not None}
    if not rows or len(found) < len(rows):
        yield from (Verdict(each), Verdict(mean))
        return
    least = min(found, key=lambda point: found[point])
    yield Verdict(each, f"{found[least]:.2f} × at least ({least})", found[least] >= 4)
    geometric = math.prod(found.values()) ** (1 / len(found))
    yield Verdict(mean, f"{geometric:.2f} ×", geometric >= 6)


def _break_even(ratios: Mapping[int, float], width: int, most: int) -> Verdict:
    target = f"faster than softmax in ONNX Runtime beyond {most} tokens, d = {width}"
    if not ratios or max(ratios) < most:
        return Verdict(target)
    found = break_even(ratios)
    beyond = "never" if found is None else f"beyond {found:.0f}"
    return Verdict(target, f"{beyond}; {describe_ranges(ratios)}", found is not None and found <= most)


HOW_TO_READ = (
    "Cells: milliseconds of one call (spread of the rounds, relative error against float64); ! marks a figure with a "
    "doubt. *ours, packed* takes the array that a layer's projection makes and merges the heads at the end, as a model "
    "runs it; *separate* takes q, k and v by head, as the others do.\n"
)
SWEPT = (PACKED, SEPARATE, EAGER, PAPER)
COLOURS = dict(
    zip((*SWEPT, SOFTMAX, SDPA), ("#0b6e99", "#7cc4e0", "#829ab1", "#c2601a", "#7b4ea3", "#b79ad0"), strict=True)
)
LENGTHS = (17, 50, 197, 1024, 4096, 16384, 65536)


def build_report(rows: Sequence[Row], facts: Mapping[str, Any], verdicts: Sequence[Verdict]) -> Report:
    trained = [row for row in rows if row.place.norm == TRAINED_NORM]
    lengths = {row.place.tokens for row in rows if row not in trained}
    swept = sorted((row for row in rows if row.place.tokens in lengths), key=lambda row: row.place.norm)
    about = f"6 heads, float32, ‖S‖₂ = {TRAINED_NORM:g} unless it says otherwise. Judged: {facts['judged']}.\n"
    sections = [HOW_TO_READ]
    for width in _widths(trained):
        of_width = [row for row in trained if row.place.width == width]
        sections += [f"## d = {width}\n", _grid(of_width, facts["judged"])]
        for ours in (PACKED, SEPARATE):
            sections.append(f"Against {ours}, {describe_ranges(softmax_ratios(of_width, width, ours))}.\n")
        sections.append(_rates(of_width))
    sections += [_norms([row for row in swept if row.place.width == width]) for width in _widths(swept)]
    sections += [_wrong(rows), _memory(facts["memory"])]
    contests = {str(row.place): row.contest for row in rows}
    content = {"rows": [as_dict(row) for row in rows]}
    title = "The attention operator"
    return Report("attention", title, facts, contests, content, sections, verdicts, _plots(rows), about)


def as_dict(row: Row) -> dict[str, Any]:
    return {**row.place._asdict(), **row.contest.as_dict(error=row.errors, way=row.ways), "wrong": row.wrong}


def _widths(rows: Sequence[Row]) -> list[int]:
    return sorted({row.place.width for row in rows}, reverse=True)


def _times(row: Row, names: Sequence[str]) -> list[str]:
    return [time_cell(row.contest, name, row.errors.get(name)) for name in names]


def _grid(rows: Sequence[Row], ours: str) -> str:
    peers = {"× paper": PAPER, "× matrix_exp": DENSE, "× softmax": SOFTMAX}
    cells = []
    for row in sorted(rows, key=lambda row: row.place):
        ratios = [ratio_cell(row.contest, ours, peer) for peer in peers.values()]
        cells.append([str(row.place.batch), str(row.place.tokens), *_times(row, ALL), *ratios])
    return table(["batch", "tokens", *ALL, *peers], cells)


def _rates(rows: Sequence[Row]) -> str:
    cells = []
    for row in rows:
        if SGEMM in row.contest:
            shares = [share_of_sgemm(row, ours) for ours in (PACKED, SEPARATE)]
            limit = SGEMM_FLOPS / row.contest.milliseconds(SGEMM).median / 1e6
            shown = ["–" if share is None else f"{share.median:.0%}" for share in shares]
            cells.append([str(row.place.tokens), f"{minimal_flops(row.place) / 1e9:.2f}", f"{limit:.0f}", *shown])
    head = ["tokens", "least GFLOP", "sgemm, GFLOP/s", f"{PACKED}: share of it", f"{SEPARATE}: share of it"]
    return table(head, cells) if cells else ""


def _norms(rows: Sequence[Row]) -> str:
    """The sweep over ‖S‖, with the rows of the trained norm between."""
    chosen = [row for row in rows if row.place.batch == 1]
    if len(chosen) < 2:
        return ""
    cells = [[f"{row.place.norm:g}", *_times(row, SWEPT)] for row in chosen]
    title = f"## ‖S‖₂ at {chosen[0].place.tokens} tokens, d = {chosen[0].place.width}\n"
    return f"{title}\n{table(['‖S‖₂', *SWEPT], cells)}"


def _wrong(rows: Sequence[Row]) -> str:
    lines = [
        f"- {row.place}: {name} has a relative error of {error:.1e} and therefore no time"
        for row in rows
        for name, error in row.wrong.items()
    ]
    return "\n".join(["## Wrong answers\n", *lines]) + "\n" if lines else ""


def _memory(memory: Mapping[str, int] | None) -> str:
    if memory is None:
        return ""
    sizes = {name: three_digits(value / MIB) for name, value in memory.items()}
    return (
        f"## Memory\n\nAt {memory['tokens']} tokens, d = {memory['width']}, a process of its own grew by at most "
        f"{sizes['peak']} MiB from before it loaded the session; inputs are {sizes['inputs']} MiB of that, outputs "
        f"{sizes['outputs']} MiB.\n"
    )


def _plots(rows: Sequence[Row]) -> dict[str, Plot]:
    trained = [row for row in rows if row.place.batch == 1 and row.place.norm == TRAINED_NORM]
    by_width = {w: sorted((r for r in trained if r.place.width == w), key=lambda r: r.place) for w in _widths(trained)}
    size = (5.2 * len(by_width), 4.4)
    return {"attention-time.svg": Plot("Time over length", size, partial(draw_lengths, by_width))}


def draw_lengths(by_width: Mapping[int, Sequence[Row]], figure: Any) -> None:
    """Time over length, a panel for each width."""
    panels = figure.subplots(1, len(by_width), squeeze=False, sharey=True)[0]
    for axes, (width, rows) in zip(panels, by_width.items(), strict=True):
        for name, colour in COLOURS.items():
            found = {row.place.tokens: row.contest.milliseconds(name) for row in rows if name in row.contest}
            x, spreads = list(found), list(found.values())
            axes.plot(x, [s.median for s in spreads], marker="o", ms=3.5, color=colour, label=name)
            axes.fill_between(x, [s.p10 for s in spreads], [s.p90 for s in spreads], color=colour, alpha=0.2, lw=0)
        logarithmic(axes.xaxis, LENGTHS, subs=(1.0,))
        logarithmic(axes.yaxis, subs=(1.0, 3.0))
        axes.set_title(f"milliseconds, batch 1, 6 heads, d = {width}")
        axes.set_xlabel("tokens")
    legend_below(figure, panels[0])
