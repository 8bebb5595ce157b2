"""The main graph of a model as a picture, PNG or SVG, drawn with matplotlib alone: no system package is needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx

from osa_runtime.errors import InputError
from osa_runtime.inspection.folded_graph import Arrow, Box, FoldedGraph, fold
from osa_runtime.inspection.inspecting import onnx_file
from osa_runtime.onnx_files import read_onnx
from osa_runtime.plotting import INK, check_figure_path, write_figure

DPI, LEAST_DPI, MOST_PIXELS = 160, 50, 30_000
ROW, HEIGHT, GAP, MARGIN = 0.62, 0.36, 0.22, 0.35  # inches
STRIP = 0.3  # inches; names the repeated block, along its left side
LEAST_WIDTH = 6.4  # inches, for the legend
CHARACTER = 0.074  # inches; the mean width of a character at the size of the titles
FAINT, PANEL = "#829ab1", "#f0f4f8"

# kind: fill, edge, text, name in the legend
LOOKS = {
    "input": ("#ffffff", INK, INK, "input, output"),
    "output": ("#ffffff", INK, INK, None),
    "function": ("#0b6e99", "#074b69", "#ffffff", "function of the model"),
    "product": ("#cfe8f3", "#5b9fbf", INK, "matrix product"),
    "value": ("#fdecc8", "#d6a541", INK, "elementwise, reduction"),
    "control": ("#f9d3d3", "#c65b5b", INK, "control flow"),
    "layout": ("#e9edf1", "#b3c0cc", "#52606d", "shape and order only"),
}


def draw_artifact(artifact: Path, path: Path) -> None:
    """Draw the model in an exported folder or an .onnx file, titled with its name."""
    file = onnx_file(artifact)
    draw_graph(read_onnx(file), artifact.resolve().stem, path)


def draw_graph(model: onnx.ModelProto, title: str, path: Path) -> None:
    """Write the picture; ``path`` ends in .png or .svg."""
    check_figure_path(path, "path")
    drawn = fold(model)
    widths = {box.key: _width(box) + GAP for box in drawn.boxes}
    edges = [(arrow.source, arrow.target) for arrow in drawn.arrows]
    last = [box.key for box in drawn.boxes if box.kind == "output"]
    layout = lay_out([box.key for box in drawn.boxes], edges, widths, last)
    frame = _frame(drawn, layout)
    size = frame[1] - frame[0], frame[2] - frame[3]
    dpi = _dpi(size, path)

    def draw(figure: Any) -> None:
        figure.set_dpi(dpi)
        _fill(figure, frame, drawn, layout, title)

    write_figure(path, size, draw, layout=None)


def _dpi(size: tuple[float, float], path: Path) -> float:
    dpi = min(DPI, MOST_PIXELS / max(size))
    if path.suffix.lower() == ".png" and dpi < LEAST_DPI:
        raise InputError("The graph is too large for a legible PNG: draw it as .svg, or keep the functions at export.")
    return dpi


def _frame(drawn: FoldedGraph, layout: GraphLayout) -> tuple[float, float, float, float]:
    """The left, right, lower and upper edges in inches, downwards."""
    places = [x for route in layout.routes.values() for x, _ in route]
    places += [layout.x[box.key] + side * _width(box) / 2 for box in drawn.boxes for side in (-1, 1)]
    left, right = min(places) - MARGIN - STRIP, max(places) + MARGIN
    middle, width = (left + right) / 2, max(right - left, LEAST_WIDTH)
    return middle - width / 2, middle + width / 2, (layout.layers - 1) * ROW + 0.8, -0.85


def _fill(
    figure: Any, frame: tuple[float, float, float, float], drawn: FoldedGraph, layout: GraphLayout, title: str
) -> None:
    left, right, bottom, top = frame
    middle = (left + right) / 2
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.axis("off")
    axes.text(middle, top + 0.3, title, ha="center", va="center", fontsize=11, fontweight="bold", color=INK)
    _draw_panel(axes, drawn, layout)
    for arrow in drawn.arrows:
        _draw_arrow(axes, arrow, layout)
    for box in drawn.boxes:
        _draw_box(axes, box, layout)
    _draw_legend(axes, {box.kind for box in drawn.boxes}, middle, bottom - 0.2)


def _draw_panel(axes: Any, drawn: FoldedGraph, layout: GraphLayout) -> None:
    from matplotlib.patches import FancyBboxPatch

    members = [box for box in drawn.boxes if box.folded]
    if not members or drawn.repetition is None:
        return
    text = f"{drawn.repetition.name}   × {len(drawn.repetition.blocks)}"
    left = min(layout.x[box.key] - _width(box) / 2 for box in members) - 0.2 - STRIP
    right = max(layout.x[box.key] + _width(box) / 2 for box in members) + 0.2
    rows = [layout.layer[box.key] * ROW for box in members]
    pad = HEIGHT / 2 + 0.07
    corner, size = (left, min(rows) - pad), (right - left, max(rows) - min(rows) + 2 * pad)
    style: dict[str, Any] = dict(boxstyle="round,pad=0,rounding_size=0.12", fc=PANEL, ec="#bcccdc", lw=1, zorder=0)
    axes.add_patch(FancyBboxPatch(corner, *size, **style))
    axes.add_patch(FancyBboxPatch(corner, STRIP, size[1], **(style | dict(fc="#d9e2ec"))))
    style = dict(ha="center", va="center", rotation=90, fontsize=9, fontweight="bold", color=INK)
    axes.text(left + STRIP / 2, corner[1] + size[1] / 2, text, **style)


def _draw_arrow(axes: Any, arrow: Arrow, layout: GraphLayout) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Curve

    points = [(x, row * ROW) for x, row in layout.routes[arrow.source, arrow.target]]
    vertices, codes = [(points[0][0], points[0][1] + HEIGHT / 2)], [Curve.MOVETO]
    for index, (x, y) in enumerate(points[1:], start=1):
        end = (x, y - HEIGHT / 2 if index == len(points) - 1 else y)
        bend = (end[1] - vertices[-1][1]) / 2
        vertices += [(vertices[-1][0], vertices[-1][1] + bend), (end[0], end[1] - bend), end]
        codes += [Curve.CURVE4] * 3
    style: dict[str, Any] = dict(
        arrowstyle="-|>,head_length=3.2,head_width=1.6", color=FAINT, lw=1, zorder=1, shrinkA=0, shrinkB=0
    )
    axes.add_patch(FancyArrowPatch(path=Curve(vertices, codes), **style))
    alone = sum(arrow.source == source or arrow.target == target for source, target in layout.routes) == 1
    if arrow.label and alone and len(points) == 2 and abs(points[0][0] - points[1][0]) < 0.05:
        axes.text(points[0][0] + 0.07, points[0][1] + ROW / 2, arrow.label, va="center", fontsize=6.2, color=FAINT)


def _draw_box(axes: Any, box: Box, layout: GraphLayout) -> None:
    from matplotlib.patches import FancyBboxPatch

    fill, edge, ink, _ = LOOKS[box.kind]
    x, y, width = layout.x[box.key], layout.layer[box.key] * ROW, _width(box)
    rounding = HEIGHT / 2 if box.kind in ("input", "output") else 0.06
    style: dict[str, Any] = dict(boxstyle=f"round,pad=0,rounding_size={rounding}", fc=fill, ec=edge, lw=1.1, zorder=2)
    axes.add_patch(FancyBboxPatch((x - width / 2, y - HEIGHT / 2), width, HEIGHT, **style))
    weight = "bold" if box.kind in ("function", "input", "output") else "normal"
    lift = 0.065 if box.detail else 0.0
    text = dict(ha="center", va="center_baseline", color=ink, zorder=3)
    axes.text(x, y - lift, box.title, fontsize=8, fontweight=weight, **text)
    axes.text(x, y + 0.09, box.detail, fontsize=6.2, alpha=0.85, **text)


def _draw_legend(axes: Any, kinds: set[str], middle: float, y: float) -> None:
    entries = [(look[0], look[1], look[3]) for kind, look in LOOKS.items() if kind in kinds and look[3]]
    total = sum(0.32 + 0.05 * len(name) for *_, name in entries)
    x = middle - total / 2
    for fill, edge, name in entries:
        axes.plot([x], [y], marker="s", ms=7, mfc=fill, mec=edge, clip_on=False)
        axes.text(x + 0.1, y, name, va="center", fontsize=6.2, color=INK)
        x += 0.32 + 0.05 * len(name)


def _width(box: Box) -> float:
    return max(0.9, CHARACTER * len(box.title) + 0.3, CHARACTER * 0.76 * len(box.detail) + 0.25)


SWEEPS = 60
PULL_OF_BOXES = 16.0  # the weight of a box, relative to a point that an arrow passes

Edge = tuple[str, str]


@dataclass(frozen=True)
class GraphLayout:
    """The centres of the boxes; ``routes`` has the points of each arrow, ends included."""

    x: Mapping[str, float]
    layer: Mapping[str, int]
    routes: Mapping[Edge, tuple[tuple[float, int], ...]]
    layers: int


def lay_out(
    keys: Sequence[str], edges: Sequence[Edge], widths: Mapping[str, float], last: Sequence[str]
) -> GraphLayout:
    """Lay out ``keys``, which are in topological order, with ``last`` in the bottom layer."""
    layer = _layers(keys, edges, last)
    chains = {edge: _chain(edge, layer) for edge in edges}
    rows: defaultdict[int, list[str]] = defaultdict(list)
    places = dict(layer)
    for key in keys:
        rows[layer[key]].append(key)
    for edge, chain in chains.items():
        for offset, point in enumerate(chain[1:-1], start=1):
            rows[layer[edge[0]] + offset].append(point)
            places[point] = layer[edge[0]] + offset
    neighbours = _neighbours(chains.values())
    x = _coordinates([rows[index] for index in sorted(rows)], neighbours, widths)
    routes = {edge: tuple((x[point], places[point]) for point in chain) for edge, chain in chains.items()}
    return GraphLayout({key: x[key] for key in keys}, layer, routes, len(rows))


def _layers(keys: Sequence[str], edges: Sequence[Edge], last: Sequence[str]) -> dict[str, int]:
    before: defaultdict[str, list[str]] = defaultdict(list)
    after: defaultdict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        before[target].append(source)
        after[source].append(target)
    layer: dict[str, int] = {}
    for key in keys:
        layer[key] = max((layer[source] + 1 for source in before[key] if source in layer), default=0)
    for key in reversed(keys):  # a box without inputs, such as a second input, is placed right above its first reader
        if not before[key] and after[key]:
            layer[key] = min(layer[target] for target in after[key]) - 1
    bottom = max(layer.values(), default=0)
    return layer | dict.fromkeys(last, bottom)


def _chain(edge: Edge, layer: Mapping[str, int]) -> tuple[str, ...]:
    source, target = edge
    between = range(layer[source] + 1, layer[target])
    return (source, *(f"{source} to {target} at {index}" for index in between), target)


def _neighbours(chains: Iterable[Sequence[str]]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for chain in chains:
        for one, other in pairwise(chain):
            found[one].append(other)
            found[other].append(one)
    return found


def _coordinates(
    rows: Sequence[list[str]], neighbours: Mapping[str, list[str]], widths: Mapping[str, float]
) -> dict[str, float]:
    x: dict[str, float] = {}
    for row in rows:
        x |= _spread(row, dict.fromkeys(row, 0.0), widths)
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = {key: _pulled(key, x, neighbours.get(key, []), widths) for key in row}
            row.sort(key=lambda key: wanted[key])
            x |= _spread(row, wanted, widths)
    return x


def _spread(row: Sequence[str], wanted: Mapping[str, float], widths: Mapping[str, float]) -> dict[str, float]:
    """The places closest to the wanted ones at which the boxes do not touch."""
    places: list[float] = []
    for index, key in enumerate(row):
        least = places[-1] + (_width_of(row[index - 1], widths) + _width_of(key, widths)) / 2 if places else wanted[key]
        places.append(max(wanted[key], least))
    misses = [(wanted[key] - place, _weight(key, widths)) for key, place in zip(row, places, strict=True)]
    shift = sum(miss * weight for miss, weight in misses) / sum(weight for _, weight in misses)
    return {key: place + shift for key, place in zip(row, places, strict=True)}


def _width_of(key: str, widths: Mapping[str, float]) -> float:
    return widths.get(key, 0.35)  # a point of an arrow that passes


def _weight(key: str, widths: Mapping[str, float]) -> float:
    return PULL_OF_BOXES if key in widths else 1.0


def _pulled(key: str, x: Mapping[str, float], neighbours: Sequence[str], widths: Mapping[str, float]) -> float:
    """The mean place of the neighbours; those of the same kind weigh more, to keep columns and arrows straight."""
    if not neighbours:
        return x[key]
    weights = [PULL_OF_BOXES if (key in widths) == (other in widths) else 1.0 for other in neighbours]
    return sum(x[other] * weight for other, weight in zip(neighbours, weights, strict=True)) / sum(weights)
