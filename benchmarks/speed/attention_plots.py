"""The operator benchmark as pictures."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from speed.attention_contenders import EAGER, PAPER, SDPA, SOFTMAX, Row
from speed.attention_inputs import TRAINED_NORM
from speed.exported_operator import PACKED, SEPARATE
from speed.plots import FAINT, GREY, LIGHT, OURS, SOFT, SOFTER, STYLE, THEIRS, dress

LOOKS = {PACKED: OURS, SEPARATE: LIGHT, EAGER: GREY, PAPER: THEIRS, SOFTMAX: SOFT, SDPA: SOFTER}
LENGTHS = (17, 50, 197, 1024, 4096, 16384, 65536)


def draw_lengths(rows: Sequence[Row]) -> Figure:
    """Time over length, a panel for each width."""
    by_width = _single_sequences(rows)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.2 * len(by_width), 4.4), layout="constrained")
        panels = figure.subplots(1, len(by_width), squeeze=False, sharey=True)[0]
        for axes, (width, chosen) in zip(panels, by_width.items(), strict=True):
            for name in LOOKS:
                _line(axes, [(row.point.tokens, row) for row in chosen], name)
            dress(axes, f"milliseconds, batch 1, 6 heads, d = {width}", "tokens", LENGTHS)
        _legend(figure, panels[0])
    return figure


def draw_break_even(rows: Sequence[Row]) -> Figure:
    """Times as fast as softmax and as the paper's method, over length."""
    by_width = _single_sequences(rows)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.2 * len(by_width), 4.0), layout="constrained")
        panels = figure.subplots(1, len(by_width), squeeze=False, sharey=True)[0]
        for axes, (width, chosen) in zip(panels, by_width.items(), strict=True):
            for peer, ours, style in (
                (SOFTMAX, PACKED, "-"),
                (SOFTMAX, SEPARATE, ":"),
                (PAPER, PACKED, "-"),
                (PAPER, SEPARATE, ":"),
            ):
                points = [
                    (row.point.tokens, row.contest.ratio(ours, peer).median)
                    for row in chosen
                    if ours in row.contest and peer in row.contest
                ]
                label = f"{ours}, against {peer}"
                if points:
                    axes.plot(*zip(*points, strict=True), style, marker="o", ms=3.5, color=LOOKS[peer], label=label)
            axes.axhline(1, color=FAINT, lw=1)
            dress(axes, f"times as fast, d = {width}", "tokens", LENGTHS[:-1])
        _legend(figure, panels[0], columns=2)
    return figure


def draw_norms(rows: Sequence[Row]) -> Figure | None:
    """Time and error over ‖S‖; None where only one was measured."""
    swept = {row.point.tokens for row in rows if row.point.norm != TRAINED_NORM}
    chosen = [row for row in rows if row.point.tokens in swept and row.point.batch == 1]
    if not chosen:
        return None
    width = max(row.point.width for row in chosen)
    chosen = sorted((row for row in chosen if row.point.width == width), key=lambda row: row.point.norm)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.4, 4.0), layout="constrained")
        time, error = figure.subplots(1, 2)
        for name in (PACKED, SEPARATE, EAGER, PAPER):
            _line(time, [(row.point.norm, row) for row in chosen], name)
            points = [(row.point.norm, row.errors[name]) for row in chosen if name in row.errors]
            if points:
                error.plot(*zip(*points, strict=True), marker="o", ms=3.5, color=LOOKS[name])
        place = f"{chosen[0].point.tokens} tokens, 6 heads, d = {width}"
        dress(time, f"milliseconds, {place}", "‖S‖₂")
        dress(error, f"relative error against float64, {place}", "‖S‖₂")
        error.yaxis.set_major_formatter("{x:.0e}")
        _legend(figure, time)
    return figure


def _single_sequences(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """The rows of a batch of 1 and the norm of trained models, by width and in the order of their lengths."""
    found = [row for row in rows if row.point.norm == TRAINED_NORM and row.point.batch == 1]
    widths = sorted({row.point.width for row in found}, reverse=True)
    return {
        width: sorted((row for row in found if row.point.width == width), key=lambda row: row.point) for width in widths
    }


def _line(axes, points: Sequence[tuple[float, Row]], name: str) -> None:  # type: ignore[no-untyped-def]
    found = [(x, row.contest.milliseconds(name)) for x, row in points if name in row.contest]
    if not found:
        return
    x = [place for place, _ in found]
    axes.plot(x, [s.median for _, s in found], marker="o", ms=3.5, color=LOOKS[name], label=name)
    axes.fill_between(x, [s.p10 for _, s in found], [s.p90 for _, s in found], color=LOOKS[name], alpha=0.2, lw=0)


def _legend(figure: Figure, axes, columns: int = 6) -> None:  # type: ignore[no-untyped-def]
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels) or 1), frameon=False)
