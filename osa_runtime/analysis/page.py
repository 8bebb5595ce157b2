"""The files of an analysis: analysis.json, figures as SVG and PNG, and one HTML page."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from osa_runtime.analysis.analysing import RANDOM, Analysis, LayerFacts
from osa_runtime.analysis.figures import (
    draw_depth,
    draw_heads,
    draw_matrices,
    draw_pictures,
    has_norms,
    patch_grid,
)
from osa_runtime.atomic import atomic_file
from osa_runtime.plotting import write_figure
from osa_runtime.verification.page.document import whole_page
from osa_runtime.verification.page.figures import ARTIFACT, figure
from osa_runtime.verification.page.markup import Figure, Html, number, section, table, tag

BLUE = "#0072b2"
DEPTH = (
    "The tokens that each attention layer receives, mean over the samples: equal tokens have a rank and a cosine of 1, "
    "and a residual of 0."
)
HEADS = (
    "‖S‖ is the largest angle by which the head turns tokens into each other, in radians; the largest of the samples."
)
SIZES = "‖A‖/√N, which is 1 for an orthogonal matrix; the largest of the samples."
MATRICES = "A − I of the head with the largest change, on the first sample: blue takes away, red adds."
Drawing = tuple[str, str, float, Callable[..., None], str]


def write_analysis(analysis: Analysis, folder: Path) -> list[Path]:
    """Write everything into ``folder``; the page comes last."""
    data, page = folder / "analysis.json", folder / "analysis.html"
    with atomic_file(data) as temporary:
        text = json.dumps(analysis.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")
    written = [data]
    for name, _, height, draw, _ in _drawings(analysis):
        for suffix in (".svg", ".png"):
            write_figure(folder / f"{name}{suffix}", (9.6, height), _coloured(draw, analysis, BLUE))
            written.append(folder / f"{name}{suffix}")
    with atomic_file(page) as temporary:
        temporary.write_text(_page(analysis), encoding="utf-8")
    return [*written, page]


def _drawings(analysis: Analysis) -> list[Drawing]:
    """Name, title, height, function and caption of each figure."""
    found: list[Drawing] = [
        ("depth", "Tokens through depth", 2.8, draw_depth, DEPTH),
        ("heads", "Heads", 1.2 + 0.32 * len(analysis.layers), draw_heads, HEADS if has_norms(analysis) else SIZES),
        ("matrices", "Attention matrices", 2.4, draw_matrices, MATRICES),
    ]
    if patch_grid(analysis) is not None:
        caption = "What the outlined token takes from every other, |A|, over the picture; the darkest is the largest."
        rows = min(3, analysis.rows)
        found.append(("pictures", "Attention over the picture", 0.5 + 2.2 * rows, draw_pictures, caption))
    return found


def _coloured(draw: Callable[..., None], analysis: Analysis, colour: str) -> Callable[[Any], None]:
    return lambda drawn: draw(drawn, analysis, colour) if draw is draw_depth else draw(drawn, analysis)


def _page(analysis: Analysis) -> str:
    drawn_from = "" if analysis.data == RANDOM else "samples of "
    kind = {"checkpoint": "A checkpoint", "artifact": "An artifact"}[analysis.kind]
    about = f"{kind}, looked into on {analysis.rows} {drawn_from}{analysis.data}, {analysis.tokens} tokens each."
    body: list[object] = [tag("h1", f"{analysis.model}: inside"), tag("p", about), _tiles(analysis)]
    for name, title, height, draw, caption in _drawings(analysis):
        drawn = figure(name, height, partial(_coloured(draw, analysis, ARTIFACT)), caption, title)
        body.append(section(title, name, drawn))
    body.append(section("Layers", "layers", _table(analysis), *_without_jacobian(analysis)))
    return whole_page(f"{analysis.model} · analysis", body)


def _tiles(analysis: Analysis) -> Html:
    layers = analysis.layers
    norms = [norm for layer in layers for norm in layer.norms or ()]
    conditions = [layer.condition for layer in layers if layer.condition is not None]
    shown = [
        (str(len(layers)), "attention layers"),
        (number(max(norms), ".3g") if norms else "", "largest ‖S‖"),
        (number(max(defect for layer in layers for defect in layer.defects)), "largest ‖AᵀA − I‖"),
        (number(max(conditions), ".3g") if conditions else "", "worst condition number of a layer's Jacobian"),
        (number(layers[-1].effective_rank, ".3g"), "effective rank of the last layer's tokens"),
    ]
    return tag(
        "div",
        *(tag("div", tag("b", big), tag("span", small), class_="tile") for big, small in shown if big),
        class_="tiles",
    )


def _table(analysis: Analysis) -> Html:
    columns = ("layer", "‖S‖ by head", "α by head", "‖AᵀA − I‖", "rank", "cosine", "residual", "σ of the Jacobian")
    return table(columns, [_row(layer) for layer in analysis.layers])


def _without_jacobian(analysis: Analysis) -> list[Html]:
    missing = analysis.without_jacobian()
    return [tag("p", f"No Jacobian of {', '.join(layers)}: {reason}.") for reason, layers in missing.items()]


def _row(layer: LayerFacts) -> tuple[object, ...]:
    def listed(values: tuple[float, ...] | None) -> Figure | None:
        return None if values is None else Figure(", ".join(number(value, ".2g") for value in values))

    low, high = layer.smallest_singular_value, layer.largest_singular_value
    return (
        layer.name,
        listed(layer.norms),
        listed(layer.alphas),
        Figure(number(max(layer.defects))),
        Figure(number(layer.effective_rank, ".3g")),
        Figure(number(layer.cosine)),
        Figure(number(layer.residual)),
        None if low is None else Figure(f"{number(low)} to {number(high)}"),
    )
