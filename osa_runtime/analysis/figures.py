"""The figures of an analysis: layers, heads, and what a token attends to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from osa_runtime.analysis.analysing import Analysis
from osa_runtime.analysis.views import LayerView

SHOWN_PICTURES, SHOWN_LAYERS, SHOWN_MATRICES = 3, 3, 6


def draw_depth(figure: Any, analysis: Analysis, colour: str) -> None:
    """Tokens before each attention layer."""
    panels = figure.subplots(1, 3)
    layers = range(1, len(analysis.layers) + 1)
    for axes, (name, title) in zip(
        panels,
        (("effective_rank", "effective rank"), ("cosine", "mean cosine"), ("residual", "residual from rank one")),
        strict=True,
    ):
        values = [math.nan if (v := getattr(layer, name)) is None else v for layer in analysis.layers]
        axes.plot(layers, values, marker="o", ms=4, lw=1.6, color=colour)
        axes.set(title=title, xlabel="layer")
        axes.set_ylim(*_with_margin(values))
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def _with_margin(values: Sequence[float]) -> tuple[float, float]:
    """The range of an axis from 0, or from the least, to the largest, so that no point is cut."""
    known = [value for value in values if not math.isnan(value)] or [1.0]
    low, high = min(0.0, *known), max(0.0, *known)
    margin = 0.07 * (high - low or 1.0)
    return low - margin * (low < 0), high + margin


def draw_heads(figure: Any, analysis: Analysis) -> None:
    """‖S‖ of every layer and head where it is known, otherwise ‖A‖/√N."""
    known = has_norms(analysis)
    values = [layer.norms if known else layer.sizes for layer in analysis.layers]
    heads = max(len(row or ()) for row in values)
    grid = np.full((len(values), heads), np.nan)
    for row, some in enumerate(values):
        grid[row, : len(some or ())] = np.array(some) / (1 if known else math.sqrt(analysis.tokens))
    axes = figure.subplots()
    _map(figure, axes, grid, "‖S‖" if known else "‖A‖/√N")
    axes.set(xlabel="head", ylabel="layer")
    axes.set_xticks(np.arange(heads) + 0.5, [str(i + 1) for i in range(heads)])
    axes.set_yticks(np.arange(len(values)) + 0.5, [str(i + 1) for i in range(len(values))])
    axes.set_ylim(len(values), 0)


def has_norms(analysis: Analysis) -> bool:
    return all(layer.norms is not None for layer in analysis.layers)


def draw_matrices(figure: Any, analysis: Analysis) -> None:
    """A − I of the strongest head of a few layers, on the first sample."""
    chosen = _spread(analysis.views, SHOWN_MATRICES)
    for axes, (index, view) in zip(np.ravel(figure.subplots(1, len(chosen), squeeze=False)), chosen, strict=True):
        head = strongest(view)
        change = view.matrices[0, head].double().numpy() - np.eye(view.matrices.size(-1))
        limit = float(np.abs(change).max()) or 1.0
        _map(None, axes, change, "", "RdBu_r", (-limit, limit))
        axes.set(title=f"layer {index + 1}, head {head + 1}\n± {limit:.2g}", aspect="equal")
        axes.set_ylim(change.shape[0], 0)
        axes.set_xticks([])
        axes.set_yticks([])


def draw_pictures(figure: Any, analysis: Analysis) -> None:
    """Pictures, and over them how much the middle patch takes from every other, in a few layers."""
    assert analysis.pictures is not None, "only for models of images"
    chosen, pictures = _spread(analysis.views, SHOWN_LAYERS), analysis.pictures[:SHOWN_PICTURES]
    panels = figure.subplots(len(pictures), 1 + len(chosen), squeeze=False)
    grid = patch_grid(analysis)
    assert grid is not None
    rows, columns, summaries = grid
    token = (rows // 2) * columns + columns // 2
    for picture, line in zip(range(len(pictures)), panels, strict=True):
        for axes in line:
            _picture(axes, pictures[picture])
        _outline(line[0], pictures[picture].shape, grid, token)
        for axes, (index, view) in zip(line[1:], chosen, strict=True):
            head = strongest(view)
            weights = view.matrices[picture, head, token + summaries, summaries:].abs().double().numpy().copy()
            weights[token] = 0.0  # a token keeps most of itself
            _overlay(axes, weights.reshape(rows, columns), pictures[picture].shape)
            axes.set_title(f"layer {index + 1}, head {head + 1}" if picture == 0 else "", fontsize=8)
        line[0].set_title("the token" if picture == 0 else "", fontsize=8)


def patch_grid(analysis: Analysis) -> tuple[int, int, int] | None:
    """Rows and columns of patches, and the number of tokens before them; None if the tokens are not square patches."""
    if analysis.pictures is None:
        return None
    height, width = analysis.pictures.shape[1:]
    for summaries in (0, 1):
        patches = analysis.tokens - summaries
        side = math.isqrt(height * width // patches) if patches else 0
        if side and height % side == 0 and width % side == 0 and (height // side) * (width // side) == patches:
            return height // side, width // side, summaries
    return None


def strongest(view: LayerView) -> int:
    """The head that is furthest from leaving tokens as they are."""
    a = view.matrices[0].double().numpy()
    return int(np.argmax(np.linalg.norm(a - np.eye(a.shape[-1]), axis=(-2, -1))))


def _spread(views: Sequence[LayerView], most: int) -> list[tuple[int, LayerView]]:
    places = np.unique(np.linspace(0, len(views) - 1, min(most, len(views))).round().astype(int))
    return [(int(i), views[i]) for i in places]


def _map(
    figure: Any, axes: Any, values: Any, name: str, colours: str = "cividis", limits: tuple[float, float] | None = None
) -> None:
    """Shapes, not an embedded picture: a page refuses those. Their edges cover the seams between them."""
    import matplotlib as mpl

    low, high = limits or (None, None)
    cells = np.ma.masked_invalid(values)
    mesh = axes.pcolormesh(cells, cmap=mpl.colormaps[colours].resampled(40), vmin=low, vmax=high, lw=0.4, ec="face")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    if figure is not None:
        bar = figure.colorbar(mesh, ax=axes, label=name)
        bar.outline.set_visible(False)
        bar.solids.set_edgecolor("face")


def _picture(axes: Any, picture: Any) -> None:
    _map(None, axes, picture, "", "gray_r")
    axes.set(aspect="equal", ylim=(picture.shape[0], 0))
    axes.set_xticks([])
    axes.set_yticks([])


def _overlay(axes: Any, weights: Any, shape: tuple[int, int]) -> None:
    from matplotlib.patches import Rectangle

    tall, wide = shape[0] / weights.shape[0], shape[1] / weights.shape[1]
    largest = float(weights.max()) or 1.0
    for row, column in np.ndindex(weights.shape):
        style: dict[str, Any] = dict(fc="#d55e00", ec="none", alpha=float(0.75 * weights[row, column] / largest))
        axes.add_patch(Rectangle((column * wide, row * tall), wide, tall, **style))


def _outline(axes: Any, shape: tuple[int, int], grid: tuple[int, int, int], token: int) -> None:
    from matplotlib.patches import Rectangle

    tall, wide = shape[0] / grid[0], shape[1] / grid[1]
    row, column = divmod(token, grid[1])
    axes.add_patch(Rectangle((column * wide, row * tall), wide, tall, fill=False, ec="#0072b2", lw=2))
