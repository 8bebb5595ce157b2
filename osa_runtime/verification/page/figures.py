"""The figures of the page, drawn as SVG."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from osa_runtime.parity.certificate import CaseResult, Certificate
from osa_runtime.plotting import svg_text
from osa_runtime.verification.page.cases import judged_error, other_name, outputs, relative, tolerances
from osa_runtime.verification.page.markup import Html, tag

# Stand-ins, replaced by the page's own colours after drawing, so that a plot follows light, dark and print.
NAMES = ("ink", "soft", "faint", "grid", "paper", "artifact", "other", "cumulative", "fail")
VARIABLES = {"#" + 3 * f"{number:02}": name for number, name in enumerate(NAMES, start=1)}
INK, SOFT, FAINT, GRID, PAPER, ARTIFACT, OTHER, CUMULATIVE, FAIL = VARIABLES
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
    """A figure of the page's width, filled by ``draw``; ``label`` is its text for screen readers."""

    def draw_with_room(drawn: Any) -> None:
        drawn.set_layout_engine("constrained", h_pad=0.1)  # inches; the reader's font may be taller
        draw(drawn)

    svg = svg_text((WIDTH, height), draw_with_room, STYLE | {"svg.hashsalt": name})
    return tag("figure", _inline(svg, label), tag("figcaption", caption))


def _inline(svg: str, label: str) -> Html:
    """The SVG without prolog, metadata, size, style, and names that nothing refers to."""
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
    """Scale the axis to whole decades around the positive values; return the lower end, where 0 is drawn."""
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
    """The values for a logarithmic axis: 0 is drawn at its lower end, and unknown values are left out."""
    return [np.nan if value is None else max(float(value), floor) for value in values]


def limit_line(axes: Any, limits: list[float], dashes: str, **style: Any) -> None:
    """Draw the limit with one step for each place, so that a single one is visible, too."""
    edges = np.arange(len(limits) + 1) - 0.5
    axes.stairs(limits, edges, baseline=None, ls=dashes, color=INK, lw=1.1, **style)


def legend(axes: Any) -> None:
    """Draw the legend above the plot, where it hides no point."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=6, borderaxespad=0.3, handlelength=1.8, fontsize=8)


def short_names(names: list[str]) -> list[str]:
    """Shorten ``stack.blocks.3.mlp`` to ``3.mlp`` if that is clear; cut long names in the middle."""
    short = [re.sub(r"^\D*\.(?=\d+\.)", "", name) for name in names]
    if len(set(short)) < len(set(names)):
        short = names
    return [name if len(name) <= 32 else f"{name[:14]}…{name[-16:]}" for name in short]


def histogram_plot(certificate: Certificate) -> Html:
    """The distribution of the errors of all values of all outputs."""
    edges, counts = (np.array(certificate.histogram.get(key) or [], float) for key in ("log10_edges", "counts"))
    if not counts.sum():
        return Html("")
    truth = "float64" if any(o.artifact for _, o in outputs(certificate)) else f"the {other_name(certificate)}"
    limits = np.log10(tolerances(certificate) or [1.0])
    used = np.flatnonzero(counts)
    low, high = min(edges[used[0]], limits.min()), max(edges[used[-1] + 1], limits.max())
    caption = f"All {int(counts.sum()):,} values of all cases by their distance from {truth}, relative to the largest "
    caption += f"value of their output. The dashed line{'s are' if np.ptp(limits) else ' is'} the tolerance"
    caption += ", at its smallest and largest." if np.ptp(limits) else "."
    caption += " The leftmost bar holds exact values, too." if used[0] == 0 else ""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=ARTIFACT, ec=PAPER, lw=1)
        for place in {float(limits.min()), float(limits.max())}:
            axes.axvline(place, ls="--", color=INK, lw=1.1)
        axes.set(xlim=(np.floor(low), np.ceil(high)), xlabel=f"relative distance from {truth}", ylabel="values")
        _decades(axes.xaxis)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.grid(visible=False, axis="x")

    return figure("histogram", 2.7, draw, caption, "Histogram of relative errors")


def _decades(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))
    axis.set_major_formatter(FuncFormatter(lambda exponent, _: power(10.0**exponent)))


def sizes_plot(certificate: Certificate) -> Html:
    """Error against length, or against batch if the model has no axis of tokens."""
    cases = [case for case in certificate.cases if case.sizes]
    axis = next(reversed(cases[0].sizes)) if cases else ""
    cases = [case for case in cases if axis in case.sizes and _worst(case)[0] is not None]
    if len({case.sizes[axis] for case in cases}) < 2:
        return Html("")
    cases.sort(key=lambda case: case.sizes[axis])
    other = other_name(certificate)
    truth = "float64" if any(_worst(case)[1] is not None for case in cases) else f"the {other}"
    caption = f"The largest error of each case, from {truth}. The line joins the random inputs; the other kinds "
    caption += "are named next to the artifact's points."
    caption += EXACT if any(value == 0 for case in cases for value in _worst(case)) else ""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        _size_series(axes, cases, axis, other)
        axes.set(xlabel=axis, ylabel=f"relative error from {truth}")
        legend(axes)

    return figure("sizes", 3.3, draw, caption, f"Relative error against {axis}, logarithmic")


def _size_series(axes: Any, cases: Sequence[CaseResult], axis: str, other: str) -> None:
    places, worst = [case.sizes[axis] for case in cases], [_worst(case) for case in cases]
    plain = [i for i, case in enumerate(cases) if case.kind == "random"]
    floor = logarithmic(axes.yaxis, [value for values in worst for value in values])
    mine, theirs, limits = (lifted(values, floor) for values in zip(*worst, strict=True))

    def series(values: list[float], marker: str, name: str, line: str, **style: Any) -> None:
        if not np.isnan(values).all():
            axes.plot(places, values, marker, ls="", label=name, clip_on=False, zorder=3, **style)
            axes.plot([places[i] for i in plain], [values[i] for i in plain], line, lw=0.9, color=style["color"])

    series(mine, "o", "artifact", "-", color=ARTIFACT, ms=5)
    series(theirs, "s", other, "-", color=OTHER, ms=4)
    series(limits, "_", "tolerance of the case", "--", color=INK, ms=11, mew=1.3)
    _ticks(axes, sorted(set(places)))
    _name_kinds(axes, cases, places, mine)


def _worst(case: CaseResult) -> tuple[float | None, float | None, float | None]:
    """The judged error, the other party's own error and the tolerance, of the output with the largest error."""
    known = [output for output in case.outputs if judged_error(output) is not None]
    if not known:
        return None, None, None
    output = max(known, key=lambda found: judged_error(found) or 0.0)
    return judged_error(output), relative(output.eager), output.tolerance


def _ticks(axes: Any, sizes: Sequence[int]) -> None:
    """Ticks at the sizes themselves, or at powers if they are far apart."""
    from matplotlib.ticker import NullLocator

    if sizes[0] > 0 and sizes[-1] / sizes[0] > 8:
        axes.set_xscale("log", base=2)
    step = -(-len(sizes) // 16)
    axes.set_xticks(sizes[::step], [str(size) for size in sizes[::step]])
    axes.xaxis.set_minor_locator(NullLocator())


def _name_kinds(axes: Any, cases: Sequence[CaseResult], places: Sequence[int], values: Sequence[float]) -> None:
    """Name the kinds from top to bottom at each size, each at least a line below the one before it."""
    from matplotlib.transforms import offset_copy

    low, high = np.log10(axes.get_ylim())
    last: dict[int, float] = {}
    named = {(places[i], case.kind): i for i, case in enumerate(cases) if case.kind != "random"}
    shifted = offset_copy(axes.transData, fig=axes.figure, x=6, units="points")
    for i in sorted(named.values(), key=lambda i: -np.nan_to_num(values[i])):
        y = min(np.log10(values[i]), last.get(places[i], np.inf) - 0.055 * (high - low))
        if y >= low:
            axes.text(places[i], 10**y, cases[i].kind, transform=shifted, va="center", fontsize=7, color=SOFT)
            last[places[i]] = y
