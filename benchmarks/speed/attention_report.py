"""The tables and figures of the operator benchmark."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

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
    minimal_flops,
)
from speed.attention_inputs import TRAINED_NORM
from speed.attention_targets import describe_ranges, share_of_sgemm, softmax_ratios
from speed.contest import Row
from speed.report import MIB, Plot, Report, Verdict, ratio_cell, table, three_digits, time_cell

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
