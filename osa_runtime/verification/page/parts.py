"""The error of each part of the model as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from osa_runtime.parity.certificate import Certificate, UnitResult
from osa_runtime.verification.page import figure as paint
from osa_runtime.verification.page.markup import Html
from osa_runtime.verification.page.parties import other_name

MOST_LABELS = 80
ROOM = 110  # characters side by side under a plot


def units_plot(certificate: Certificate) -> Html:
    """The error of each part, fed alone, and, where it was bisected, of the signal behind it."""
    units, other = certificate.units, other_name(certificate)
    if all(value is None for value in _errors(units)):
        return Html("")
    labels = paint.short_names([unit.unit for unit in units])
    longest = max(map(len, labels))
    flat = len(labels) * longest < ROOM

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        _unit_series(axes, units, other)
        step = -(-len(units) // MOST_LABELS)
        axes.set_xticks(range(0, len(units), step), labels[::step], rotation=0 if flat else 90, fontsize=7.5)
        axes.set(xlim=(-0.6, len(units) - 0.4), ylabel="relative error")
        axes.grid(visible=False, axis="x")
        paint.legend(axes)

    height = 2.9 + (0.2 if flat else 0.07 * longest)
    return paint.figure("parts", height, draw, _caption(certificate), "Relative error by part, logarithmic")


def _errors(units: Sequence[UnitResult]) -> list[float | None]:
    return [value for unit in units for value in (unit.alone, unit.eager, unit.cumulative)]


def _caption(certificate: Certificate) -> str:
    units = certificate.units
    said = "Relative error of each part from float64 when it is fed with what eager feeds it, in order of execution."
    if any(unit.cumulative is not None for unit in units):
        said += " Triangles: the error of the signal behind the part, in a run of the whole model."
    if certificate.kind == "compare":
        said = "How far the signal behind each part is from that of the reference, in order of execution."
    said += " The dashed and dotted lines are the tolerances, × marks what is wrong."
    return said + (paint.EXACT if 0 in _errors(units) else "")


def _unit_series(axes: Any, units: Sequence[UnitResult], other: str) -> None:
    tolerances = [unit.tolerance or None for unit in units]
    behind = [unit.cumulative_tolerance for unit in units]
    floor = paint.logarithmic(axes.yaxis, [*_errors(units), *tolerances, *behind])
    for name, values, colour, marker, size in (
        ("artifact, alone", [unit.alone for unit in units], paint.ARTIFACT, "o", 5.0),
        (f"{other}, alone", [unit.eager for unit in units], paint.OTHER, "s", 3.5),
        ("artifact, behind it", [unit.cumulative for unit in units], paint.CUMULATIVE, "^", 4.5),
    ):
        if any(value is not None for value in values):
            style: dict[str, Any] = dict(ls="-", lw=0.7, color=colour, ms=size, clip_on=False, zorder=3)
            axes.plot(range(len(units)), paint.lifted(values, floor), marker, label=name, **style)
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
