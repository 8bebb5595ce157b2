"""A matplotlib figure as inline SVG whose colours and fonts are those of the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from osa_runtime.plotting import svg_text
from osa_runtime.verification.page.markup import Html, tag

# Stand-ins, put in place of the page's own colours after drawing: so a plot follows light, dark and print.
INK, SOFT, FAINT, GRID, PAPER = "#010101", "#020202", "#030303", "#040404", "#050505"
ARTIFACT, OTHER, CUMULATIVE, FAIL = "#060606", "#070707", "#080808", "#090909"
VARIABLES = {
    INK: "ink",
    SOFT: "soft",
    FAINT: "faint",
    GRID: "grid",
    PAPER: "paper",
    ARTIFACT: "artifact",
    OTHER: "other",
    CUMULATIVE: "cumulative",
    FAIL: "fail",
}
WIDTH = 9.6  # inches
EXACT = " A point on the lower edge is exactly 0."
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text
    "font.size": 8.5,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 3.5,
    "ytick.major.size": 3.5,
    "hatch.color": FAINT,
}
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def figure(name: str, height: float, draw: Callable[[Any], None], caption: str, label: str) -> Html:
    """``draw`` fills a figure of the page's width; ``label`` says what it shows to those who cannot see it."""

    def draw_with_room(drawn: Any) -> None:
        drawn.set_layout_engine("constrained", h_pad=0.1)  # inches; the reader's font may be taller
        draw(drawn)

    svg = svg_text((WIDTH, height), draw_with_room, STYLE | {"svg.hashsalt": name})
    return tag("figure", _inline(svg, label), tag("figcaption", caption))


def _inline(svg: str, label: str) -> Html:
    """Without what belongs to a file of its own: prolog, metadata, size, style, and names that nothing refers to."""
    body = svg[svg.index("<svg") :]
    box = re.search(r'viewBox="([^"]*)"', body)
    assert box is not None
    body = body[body.index(">") + 1 : body.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    used = set(re.findall(r'url\(#([^)]*)\)|xlink:href="#([^"]*)"', body))
    names = {name for pair in used for name in pair}
    body = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in names else "", body)
    body = body.replace("xlink:href", "href").replace("'DejaVu Sans'", "var(--sans)")
    for colour, variable in VARIABLES.items():
        body = body.replace(f": {colour}", f": var(--{variable})")
    return tag("svg", Html(body), viewBox=box[1], role="img", aria_label=label)


def power(value: float, _: object = None) -> str:
    """A tick of a logarithmic axis."""
    return f"10{str(round(np.log10(value))).translate(SUPERSCRIPTS)}" if value > 0 else ""


def logarithmic(axis: Any, values: Iterable[float | None], ticks: int = 8) -> float:
    """Whole decades around the positive values; returns the lower end, where an error of exactly 0 is drawn."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    known = [value for value in values if value is not None and np.isfinite(value) and value > 0] or [1e-7]
    low, high = np.floor(np.log10(min(known)) - 0.05), np.ceil(np.log10(max(known)) + 0.05)
    side = axis.axis_name
    axis.axes.set(**{f"{side}scale": "log", f"{side}lim": (10.0**low, 10.0**high)})
    axis.set_major_locator(LogLocator(numticks=ticks))
    axis.set_major_formatter(FuncFormatter(power))
    axis.set_minor_locator(NullLocator())
    return float(10.0**low)


def lifted(values: Iterable[float | None], floor: float) -> list[float]:
    """For a logarithmic axis: 0 stands at its lower end, and what is unknown is left out."""
    return [np.nan if value is None else max(float(value), floor) for value in values]


def limit_line(axes: Any, limits: list[float], dashes: str, **style: Any) -> None:
    """One step for each place, so that a single one is visible, too."""
    edges = np.arange(len(limits) + 1) - 0.5
    axes.stairs(limits, edges, baseline=None, ls=dashes, color=INK, lw=1.1, **style)


def legend(axes: Any) -> None:
    """Above the plot, where it hides no point."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=6, borderaxespad=0.3, handlelength=1.8, fontsize=8)


def short_names(names: list[str]) -> list[str]:
    """``stack.blocks.3.mlp`` as ``3.mlp`` where that is clear; cut in the middle where it is long."""
    short = [re.sub(r"^\D*\.(?=\d+\.)", "", name) for name in names]
    if len(set(short)) < len(set(names)):
        short = names
    return [name if len(name) <= 32 else f"{name[:14]}…{name[-16:]}" for name in short]
