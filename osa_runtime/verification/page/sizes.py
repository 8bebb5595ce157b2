"""Error against the size of the input, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from osa_runtime.parity.certificate import CaseResult, Certificate
from osa_runtime.verification.page import figure as paint
from osa_runtime.verification.page.markup import Html
from osa_runtime.verification.page.parties import judged_error, other_name, relative


def sizes_plot(certificate: Certificate) -> Html:
    """Error against length; against batch where the model has no axis of tokens."""
    cases = [case for case in certificate.cases if case.sizes]
    axis = next(reversed(cases[0].sizes)) if cases else ""
    cases = [case for case in cases if axis in case.sizes and _worst(case)[0] is not None]
    if len({case.sizes[axis] for case in cases}) < 2:
        return Html("")
    cases.sort(key=lambda case: case.sizes[axis])
    other = other_name(certificate)
    truth = "float64" if any(_worst(case)[1] is not None for case in cases) else f"the {other}"
    caption = f"The largest error of each case, from {truth}. The line joins the random inputs; the other kinds "
    caption += "are named beside the artifact's points."
    caption += paint.EXACT if any(value == 0 for case in cases for value in _worst(case)) else ""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        _size_series(axes, cases, axis, other)
        axes.set(xlabel=axis, ylabel=f"relative error from {truth}")
        paint.legend(axes)

    return paint.figure("sizes", 3.3, draw, caption, f"Relative error against {axis}, logarithmic")


def _size_series(axes: Any, cases: Sequence[CaseResult], axis: str, other: str) -> None:
    places, worst = [case.sizes[axis] for case in cases], [_worst(case) for case in cases]
    plain = [i for i, case in enumerate(cases) if case.kind == "random"]
    floor = paint.logarithmic(axes.yaxis, [value for values in worst for value in values])
    mine, theirs, limits = (paint.lifted(values, floor) for values in zip(*worst, strict=True))

    def series(values: list[float], marker: str, name: str, line: str, **style: Any) -> None:
        if not np.isnan(values).all():
            axes.plot(places, values, marker, ls="", label=name, clip_on=False, zorder=3, **style)
            axes.plot([places[i] for i in plain], [values[i] for i in plain], line, lw=0.9, color=style["color"])

    series(mine, "o", "artifact", "-", color=paint.ARTIFACT, ms=5)
    series(theirs, "s", other, "-", color=paint.OTHER, ms=4)
    series(limits, "_", "tolerance of the case", "--", color=paint.INK, ms=11, mew=1.3)
    _ticks(axes, sorted(set(places)))
    _name_kinds(axes, cases, places, mine)


def _worst(case: CaseResult) -> tuple[float | None, float | None, float | None]:
    """The judged error, the other party's own error and the tolerance, of the output that is furthest off."""
    known = [output for output in case.outputs if judged_error(output) is not None]
    if not known:
        return None, None, None
    output = max(known, key=lambda found: judged_error(found) or 0.0)
    return judged_error(output), relative(output.eager), output.tolerance


def _ticks(axes: Any, sizes: Sequence[int]) -> None:
    """At the sizes themselves; by powers where they are far apart."""
    from matplotlib.ticker import NullLocator

    if sizes[0] > 0 and sizes[-1] / sizes[0] > 8:
        axes.set_xscale("log", base=2)
    step = -(-len(sizes) // 16)
    axes.set_xticks(sizes[::step], [str(size) for size in sizes[::step]])
    axes.xaxis.set_minor_locator(NullLocator())


def _name_kinds(axes: Any, cases: Sequence[CaseResult], places: Sequence[int], values: Sequence[float]) -> None:
    """From top to bottom at each size, each name at least a line below the one before it."""
    from matplotlib.transforms import offset_copy

    low, high = np.log10(axes.get_ylim())
    last: dict[int, float] = {}
    named = {(places[i], case.kind): i for i, case in enumerate(cases) if case.kind != "random"}
    beside = offset_copy(axes.transData, fig=axes.figure, x=6, units="points")
    for i in sorted(named.values(), key=lambda i: -np.nan_to_num(values[i])):
        y = min(np.log10(values[i]), last.get(places[i], np.inf) - 0.055 * (high - low))
        if y >= low:
            axes.text(places[i], 10**y, cases[i].kind, transform=beside, va="center", fontsize=7, color=paint.SOFT)
            last[places[i]] = y
