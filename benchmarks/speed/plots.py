"""How the plots of both benchmarks look."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from osa_runtime.atomic import atomic_file

# A fixed salt and no date: the same figures give the same file.
STYLE: Any = {"svg.hashsalt": "osa", "font.family": "DejaVu Sans", "font.size": 9, "text.parse_math": False}
INK, FAINT, GRID = "#243b53", "#627d98", "#e4e7eb"
OURS, LIGHT, THEIRS, SOFT, SOFTER, GREY = "#0b6e99", "#7cc4e0", "#c2601a", "#7b4ea3", "#b79ad0", "#829ab1"


def save(figure: Figure, path: Path) -> None:
    """As .svg or .png, by the name."""
    kind = path.suffix.removeprefix(".")
    with mpl.rc_context(STYLE), atomic_file(path) as temporary:
        figure.savefig(temporary, format=kind, facecolor="white", metadata={"Date": None} if kind == "svg" else None)


def mark_noisy(figure: Figure) -> None:
    """A picture travels without its report."""
    figure.suptitle("NOISY RUN, do not trust", fontsize=10, x=0.99, ha="right", color=THEIRS)


def dress(axes: Any, title: str, x_label: str, ticks: Iterable[float] = ()) -> None:
    """Logarithmic axes with plain numbers, and quiet lines."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    chosen = list(ticks)
    if chosen:
        axes.xaxis.set_major_locator(FixedLocator(chosen))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(x_label, color=INK)
    quieten(axes, title)


def quieten(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.grid(color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=FAINT, length=3)
