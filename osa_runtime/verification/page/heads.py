"""The attention layers on the page: a row for each head, and a heat map of a few matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.parity.certificate import Certificate, LayerResult
from osa_runtime.parity.tolerances import DEFECT_SHARE, STRETCH_SHARE
from osa_runtime.verification.page import figures as paint
from osa_runtime.verification.page.cases import worst_error, worst_stretch
from osa_runtime.verification.page.markup import Html, folded, join

OTHER = (paint.OTHER, "s", 3.2)
MARKERS = {"artifact": (paint.ARTIFACT, "o", 4.5), "eager": OTHER, "reference": OTHER}
LEGEND = (
    "Left, ‖AᵀA − I‖ of every layer and head, hatched where there is no number: beyond the range of the export, or a "
    "failure. Right, the worst head of each layer: how far ‖Av‖/‖v‖ is from 1, the distance from exp(S)·V, and the "
    "squarings. Dashed: what is allowed. Red: what fails."
)


def heads_plots(certificate: Certificate) -> Html:
    """One figure for each case in which layers were checked; failed cases come first, and the first is open."""
    failed = {layer.case for layer in certificate.layers if not layer.passed}
    cases = sorted(dict.fromkeys(layer.case for layer in certificate.layers), key=lambda case: case not in failed)
    figures = [_figure(case, index, certificate) for index, case in enumerate(cases)]
    return join([*figures[:1], *(folded(f"Case {c}", f) for c, f in zip(cases[1:], figures[1:], strict=True))])


def _figure(case: str, index: int, certificate: Certificate) -> Html:
    found: dict[str, dict[str, LayerResult]] = {}
    for layer in certificate.layers:
        if layer.case == case:
            found.setdefault(layer.party, {})[layer.layer] = layer
    names = list(dict.fromkeys(name for layers in found.values() for name in layers))
    caption = f"Case {case}. {LEGEND if index == 0 else 'As above.'}"
    probed = [layer.directions for layers in found.values() for layer in layers.values() if layer.directions]
    caption += f" A was probed in {max(probed)} directions." if probed else ""
    height = 1.35 + max(0.9, (0.2 if len(names) <= 16 else 0.155) * len(names))
    return paint.figure(
        f"heads-{index}",
        height,
        lambda figure: _draw(figure, found, names),
        caption,
        f"Orthogonality by layer and head, case {case}",
    )


def _draw(figure: Any, found: Layers, names: Sequence[str]) -> None:
    """Draw the panels, whose rows are the layers, above the colour scale and the legend."""
    heats, ratios = len(found), [2.4] * len(found) + [1.25, 1.25, 0.9]
    grid = figure.add_gridspec(2, len(ratios), width_ratios=ratios, height_ratios=[figure.get_figheight() - 1.2, 0.1])
    first = figure.add_subplot(grid[0, 0])
    axes = [first] + [figure.add_subplot(grid[0, i], sharey=first) for i in range(1, len(ratios))]
    scale = colour_scale(found)
    for place, (party, layers) in zip(axes, found.items(), strict=False):
        mesh = heat_map(place, layers, names, most_heads(found), scale)
        place.set_title(f"‖AᵀA − I‖, {party}")
    colour_bar(figure, mesh, figure.add_subplot(grid[1, :heats]), [_limit(found, name, DEFECT) for name in names])
    _worst_points(axes[-3], found, names, worst_stretch, STRETCH)
    axes[-3].set_title("|‖Av‖/‖v‖ − 1|")
    _worst_points(axes[-2], found, names, worst_error, ERROR)
    axes[-2].set_title("from exp(S)·V")
    _squarings(axes[-1], found, names)
    _name_layers(first, found, names)
    for place in axes[1:]:
        place.tick_params(labelleft=False)
    below = figure.add_subplot(grid[1, heats:])
    below.axis("off")
    below.legend(*axes[-1].get_legend_handles_labels(), loc="center", ncols=2, fontsize=8)


def _name_layers(axes: Any, found: Layers, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), paint.short_names(list(names)), fontsize=7.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        if any(name in layers and not layers[name].passed for layers in found.values()):
            label.set(color=paint.FAIL, fontweight="bold")


def _worst_points(
    axes: Any, found: Layers, names: Sequence[str], measure: Callable[[LayerResult], float | None], allowed: float
) -> None:
    """A point for each party and layer, and the limit as a line."""
    rows = {name: row for row, name in enumerate(names)}
    limits = [_limit(found, name, allowed) for name in names]
    values = {party: [measure(layer) for layer in layers.values()] for party, layers in found.items()}
    floor = paint.logarithmic(axes.xaxis, [value for some in values.values() for value in some] + limits, 5)
    for party, layers in found.items():
        colour, marker, size = MARKERS[party]
        xs, ys = paint.lifted(values[party], floor), [rows[name] for name in layers]
        axes.plot(xs, ys, marker, color=colour, ms=size, clip_on=False, zorder=3)
        for x, y, layer in zip(xs, ys, layers.values(), strict=True):
            if x > allowance(layer, allowed):
                axes.plot(x, y, "x", color=paint.FAIL, ms=8, mew=2, clip_on=False, zorder=4)
    paint.limit_line(axes, paint.lifted(limits, floor), "--", orientation="horizontal")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _limit(found: Layers, name: str, factor: float) -> float | None:
    limit = next((allowance(layers[name], factor) for layers in found.values() if name in layers), np.inf)
    return limit if limit < np.inf else None


def _squarings(axes: Any, found: Layers, names: Sequence[str]) -> None:
    rows = {name: row for row, name in enumerate(names)}
    most = max((layer.squarings for layers in found.values() for layer in layers.values()), default=0)
    for party, layers in found.items():
        colour, marker, size = MARKERS[party]
        counts = [layer.squarings for layer in layers.values()]
        axes.plot(counts, [rows[name] for name in layers], marker, color=colour, ms=size, label=party, zorder=3)
    axes.set(xlim=(-0.5, most + 0.5), title="squarings")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


DEFECT, STRETCH, ERROR = DEFECT_SHARE, STRETCH_SHARE, 1.0  # allowed multiples of a layer's tolerance
Layers = Mapping[str, Mapping[str, LayerResult]]  # by party and name


def colour_scale(found: Layers) -> Any:
    """The scale that includes every defect and its limit, the same for both parties."""
    from matplotlib.colors import LogNorm

    layers = [layer for some in found.values() for layer in some.values()]
    known = [head.defect for layer in layers for head in layer.heads if head.defect]
    known += [limit for layer in layers if (limit := allowance(layer, DEFECT)) < np.inf]
    highest = max(known, default=1e-6)
    return LogNorm(min([*known, highest / 10]), highest, clip=True)


def most_heads(found: Layers) -> int:
    return max((len(layer.heads) for layers in found.values() for layer in layers.values()), default=0) or 1


def _defects(layers: Mapping[str, LayerResult], names: Sequence[str], width: int) -> NDArray[np.float64]:
    """Layers by heads; NaN where there is no number."""
    values = np.full((len(names), width), np.nan)
    for row, name in enumerate(names):
        for column, head in enumerate(layers[name].heads if name in layers else ()):
            values[row, column] = np.nan if head.defect is None else head.defect
    return values


def heat_map(axes: Any, layers: Mapping[str, LayerResult], names: Sequence[str], columns: int, scale: Any) -> Any:
    values, rows = _defects(layers, names, columns), len(names)
    edges = np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5
    axes.fill_between([-0.5, columns - 0.5], -0.5, rows - 0.5, fc="none", hatch="////", lw=0)
    mesh = axes.pcolormesh(
        *edges,
        np.ma.masked_invalid(np.maximum(values, scale.vmin)),
        norm=scale,
        cmap=_colours(),
        ec=paint.PAPER,
        lw=0.8,
    )
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xticks(range(0, columns, 1 if columns <= 16 else 4))
    axes.set_xlabel("head")
    for row, column in np.ndindex(values.shape):
        layer = layers.get(names[row])
        if layer is not None and values[row, column] > allowance(layer, DEFECT):
            _mark(axes, row, column)
        if columns <= 8 and rows <= 24 and not np.isnan(values[row, column]):
            _write(axes, row, column, float(values[row, column]), mesh)
    return mesh


def _colours() -> Any:
    """Colours in few steps: matplotlib draws them as shapes, and would embed a picture for more."""
    import matplotlib as mpl

    return mpl.colormaps["cividis"].resampled(40)


def _mark(axes: Any, row: int, column: int) -> None:
    from matplotlib.patches import Rectangle

    box = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, ec=paint.FAIL, lw=2, zorder=3, clip_on=False)
    axes.add_patch(box)


def _write(axes: Any, row: int, column: int, value: float, mesh: Any) -> None:
    red, green, blue, _ = mesh.cmap(mesh.norm(value))
    dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
    said = f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e+") if value else "0"
    style = dict(ha="center", va="center_baseline", fontsize=6.5, color="#ffffff" if dark else "#000000")
    axes.text(column, row, said, **style)


def colour_bar(figure: Any, mesh: Any, place: Any, limits: Sequence[float | None]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    ticks: dict[str, Any] = dict(ticks=LogLocator(numticks=8), format=FuncFormatter(paint.power))
    bar = figure.colorbar(mesh, cax=place, orientation="horizontal", **ticks)
    bar.minorticks_off()
    bar.solids.set_edgecolor("face")
    known = [limit for limit in limits if limit is not None]
    for limit in {min(known), max(known)} if known else ():
        place.axvline(limit, -0.6, 1.6, ls="--", color=paint.INK, lw=1.1, clip_on=False)
    bar.outline.set_visible(False)


def allowance(layer: LayerResult, factor: float) -> float:
    """The allowed value; infinite if the tolerance, which grows with ‖S‖, overflowed."""
    return np.inf if layer.tolerance is None else factor * layer.tolerance
