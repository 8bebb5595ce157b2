"""The error of each part of the model as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from osa_runtime.parity.certificate import Certificate, UnitResult
from osa_runtime.verification import page_figure as paint
from osa_runtime.verification.page_markup import Html
from osa_runtime.verification.page_parties import other_name

MOST_LABELS = 80
ROOM = 110  # characters side by side under a plot


def units_plot(certificate: Certificate) -> Html:
    """The error of each part, fed alone, and, where it was bisected, of the signal behind it."""
    units, other = certificate.units, other_name(certificate)
    values = [value for unit in units for value in (unit.alone, unit.eager, unit.cumulative)]
    if all(value is None for value in values):
        return Html("")
    labels = paint.short_names([unit.unit for unit in units])
    flat = len(labels) * max(map(len, labels)) < ROOM
    height = 2.9 + (0.2 if flat else 0.07 * max(map(len, labels)))
    caption = "Relative error of each part from float64 when it is fed with what eager feeds it, in order of execution."
    if any(unit.cumulative is not None for unit in units):
        caption += " Triangles: the error of the signal behind the part, in a run of the whole model."
    if certificate.kind == "compare":
        caption = "How far the signal behind each part is from that of the reference, in order of execution."
    caption += " The dashed and dotted lines are the tolerances, × marks what is wrong."
    caption += (
        paint.EXACT if any(value == 0 for unit in units for value in (unit.alone, unit.eager, unit.cumulative)) else ""
    )

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        _unit_series(axes, units, other)
        step = -(-len(units) // MOST_LABELS)
        axes.set_xticks(range(0, len(units), step), labels[::step], rotation=0 if flat else 90, fontsize=7.5)
        axes.set(xlim=(-0.6, len(units) - 0.4), ylabel="relative error")
        axes.grid(visible=False, axis="x")
        paint.legend(axes)

    return paint.figure("parts", height, draw, caption, "Relative error by part of the model, logarithmic")


def _unit_series(axes: Any, units: Sequence[UnitResult], other: str) -> None:
    tolerances = [unit.tolerance or None for unit in units]
    behind = [unit.cumulative_tolerance for unit in units]
    series = (
        ("artifact, alone", [unit.alone for unit in units], paint.ARTIFACT, "o", 5.0),
        (f"{other}, alone", [unit.eager for unit in units], paint.OTHER, "s", 3.5),
        ("artifact, behind it", [unit.cumulative for unit in units], paint.CUMULATIVE, "^", 4.5),
    )
    floor = paint.logarithmic(axes.yaxis, [v for _, values, *_ in series for v in values] + tolerances + behind)
    places = np.arange(len(units))
    for name, values, colour, marker, size in series:
        if any(value is not None for value in values):
            drawn = paint.lifted(values, floor)
            axes.plot(places, drawn, marker, ls="-", lw=0.7, color=colour, ms=size, label=name, clip_on=False, zorder=3)
    for name, values, dashes in (("tolerance, alone", tolerances, "--"), ("tolerance, behind it", behind, ":")):
        if any(value is not None for value in values):
            paint.limit_line(axes, paint.lifted(values, floor), dashes, label=name)
    _wrong_units(axes, units)


def _wrong_units(axes: Any, units: Sequence[UnitResult]) -> None:
    """A cross on what is wrong; at the upper edge where there is no number for it."""
    top = axes.get_ylim()[1]
    crosses = [(i, unit.alone) for i, unit in enumerate(units) if not unit.passed]
    crosses += [(i, unit.cumulative) for i, unit in enumerate(units) if unit.cumulative_passed is False]
    if crosses:
        xs, ys = zip(*((x, top if y is None else y) for x, y in crosses), strict=True)
        style: dict[str, Any] = dict(color=paint.FAIL, ms=9, mew=2, clip_on=False, zorder=4)
        axes.plot(xs, ys, "x", ls="", label="wrong", **style)
