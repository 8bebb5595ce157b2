"""Figures with matplotlib: one style, files that depend on their content alone, one error where it is not installed.

matplotlib is imported inside the functions, so that only drawing needs it. Figures are made without pyplot: it has
global state, and may open a window.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osa_runtime.atomic import atomic_file, check_writable
from osa_runtime.environment import require
from osa_runtime.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
INK, FAINT, GRID = "#243b53", "#627d98", "#e4e7eb"
# A fixed salt and no date, so that the same figures make the same file. Names are never parsed as formulas.
STYLE: dict[str, Any] = {
    "svg.hashsalt": "osa",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "legend.frameon": False,
}

Draw = Callable[["Figure"], None]


def require_matplotlib() -> None:
    require("Drawing", "matplotlib", extra="train")


def check_figure_path(path: Path, argument: str) -> None:
    """Refuse, before any work is done, a name without a known suffix and a folder that cannot be written to."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{argument}={path}: expected a name that ends in {' or '.join(FORMATS)}.")
    check_writable(path)
    require_matplotlib()


def write_figure(path: Path, size: tuple[float, float], draw: Draw, layout: str | None = "constrained") -> None:
    """Write a figure of ``size`` inches, filled by ``draw``, as PNG or SVG by the suffix of ``path``."""
    kind = path.suffix.lower().removeprefix(".")
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with _drawn(size, draw, layout, STYLE) as figure, atomic_file(path) as temporary:
        figure.savefig(temporary, format=kind, dpi="figure", metadata=metadata, facecolor="white")


def svg_text(size: tuple[float, float], draw: Draw, style: Mapping[str, Any]) -> str:
    """Return a transparent SVG; ``style`` has matplotlib's settings that differ from ours."""
    buffer = io.StringIO()
    with _drawn(size, draw, "constrained", STYLE | dict(style)) as figure, warnings.catch_warnings():
        # The reader's fonts may have glyphs that matplotlib's own lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue()


@contextmanager
def _drawn(size: tuple[float, float], draw: Draw, layout: str | None, style: Any) -> Iterator[Figure]:
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(style):
        figure = Figure(figsize=size, dpi=150, layout=layout)  # type: ignore[arg-type]  # its names are literals
        draw(figure)
        yield figure


def logarithmic(axis: Any, ticks: Iterable[float] = (), subs: tuple[float, ...] = (1.0, 2.0, 5.0)) -> None:
    """Make an axis logarithmic, with plain numbers at ``ticks``, or else at ``subs`` of every decade."""
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

    chosen = list(ticks)
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(FixedLocator(chosen) if chosen else LogLocator(subs=subs))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def legend_below(figure: Figure, axes: Any, columns: int = 6) -> None:
    """Put the legend of ``axes`` below all panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, min(columns, len(labels))))
