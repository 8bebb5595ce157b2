"""The benchmark of whole models as a picture."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from speed.markdown import milliseconds
from speed.model_artifacts import COMPILED, EAGER, ORT, PT2, SOFTMAX, TORCHSCRIPT
from speed.model_contenders import ALL, ModelResult
from speed.plots import FAINT, GREY, INK, LIGHT, OURS, SOFT, STYLE, THEIRS, quieten

LOOKS = {ORT: OURS, TORCHSCRIPT: LIGHT, PT2: LIGHT, EAGER: THEIRS, COMPILED: GREY, SOFTMAX: SOFT}


def draw_models(results: Sequence[ModelResult]) -> Figure:
    """Milliseconds, a panel for each model and batch; the bars have p10 to p90 of the rounds."""
    batches = sorted({meeting.batch for result in results for meeting in result.meetings})
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.4 * len(results), 2.3 * len(batches)), layout="constrained")
        panels = figure.subplots(len(batches), len(results), squeeze=False)
        for column, result in enumerate(results):
            for row, batch in enumerate(batches):
                _panel(panels[row][column], result, batch, first=column == 0)
    return figure


def _panel(axes, result: ModelResult, batch: int, first: bool) -> None:  # type: ignore[no-untyped-def]
    meeting = result.at(batch)
    quieten(axes, f"{result.subject.name}, batch {batch}: milliseconds")
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(ALL)), ALL if first else [""] * len(ALL), color=INK)
    axes.invert_yaxis()
    if meeting is None:
        return
    longest = max(meeting.contest.milliseconds(name).p90 for name in meeting.contest.blocks)
    for place, name in enumerate(ALL):
        if name not in meeting.contest:
            axes.text(0, place, " not measured", va="center", color=FAINT)
            continue
        found = meeting.contest.milliseconds(name)
        error = [[found.median - found.p10], [found.p90 - found.median]]
        axes.barh(place, found.median, 0.7, color=LOOKS[name], xerr=error, error_kw={"ecolor": INK, "lw": 0.8})
        label = f" {milliseconds(found.median)}"
        axes.text(max(found.median, found.p90) + 0.01 * longest, place, label, va="center", color=INK, fontsize=8)
    axes.set_xlim(0, 1.22 * longest)
