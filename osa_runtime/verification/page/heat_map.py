"""‖AᵀA − I‖ of every layer and head by colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.parity.certificate import LayerResult
from osa_runtime.parity.tolerances import DEFECT_SHARE, STRETCH_SHARE
from osa_runtime.verification.page import figure as paint

DEFECT, STRETCH, ERROR = DEFECT_SHARE, STRETCH_SHARE, 1.0  # how many tolerances of a layer each may be
Layers = Mapping[str, Mapping[str, LayerResult]]  # by party and name


def colour_scale(found: Layers) -> Any:
    """It holds every defect and what is allowed; the same for both parties."""
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
    """Few enough steps that matplotlib draws the scale as shapes; with more it embeds a picture."""
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
    """A tolerance grows with ‖S‖, and may have grown beyond all numbers."""
    return np.inf if layer.tolerance is None else factor * layer.tolerance
