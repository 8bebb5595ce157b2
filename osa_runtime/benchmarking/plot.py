"""Latency and throughput by batch and tokens as a picture."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from osa_runtime.atomic import atomic_file, check_writable
from osa_runtime.benchmarking.figures import Figures, format_ratio, plural
from osa_runtime.benchmarking.result import ARTIFACT, BenchmarkResult, Measurement
from osa_runtime.errors import InputError, MissingDependencyError

FORMATS = (".png", ".svg")
# A fixed salt (and no date): the same figures give the same file. Names are never formulas, whatever they hold.
STYLE: Any = {"svg.hashsalt": "osa", "font.family": "DejaVu Sans", "text.parse_math": False}
INK, FAINT, GRID = "#243b53", "#627d98", "#e4e7eb"
# Light for the smallest batch, dark for the largest.
SHADES = {
    ARTIFACT: ("#7cc4e0", "#3394bd", "#0b6e99", "#084c6a", "#04293a"),
    "eager": ("#f2b78a", "#e28743", "#c2601a", "#8f4410", "#5c2a07"),
}
MARKERS = "osD^v"


def check_plot(path: Path) -> None:
    """Before any work is done: the name must say which format is wanted, and matplotlib must be there."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"plot={path}: expected a name that ends in {' or '.join(FORMATS)}.")
    check_writable(path)
    try:
        import matplotlib as mpl  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependencyError('A plot needs matplotlib: pip install "osa-runtime[train]".') from error


def draw_benchmark(result: BenchmarkResult, path: Path) -> None:
    """Write the picture; ``path`` ends in .png or .svg."""
    check_plot(path)
    import matplotlib as mpl

    # The object interface, not pyplot: no global state, no window, whatever backend the user has configured.
    from matplotlib.figure import Figure

    suffix = path.suffix.lower().removeprefix(".")
    with mpl.rc_context(STYLE), atomic_file(path) as temporary:
        figure = Figure(figsize=(10, 4.6), dpi=150, layout="constrained")
        latency, throughput = figure.subplots(1, 2)
        _draw(latency, result, "Latency: median, shaded to p90 (ms)", lambda f: f.p50, lambda f: f.p90)
        _draw(throughput, result, "Throughput (rows/s)", lambda f: f.rows_per_second, None)
        _label_ratios(latency, result)
        handles, labels = latency.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False, fontsize=9)
        figure.suptitle(_title(result), fontsize=10.5, x=0.01, ha="left", color=INK)
        metadata = {"Date": None} if suffix == "svg" else {"Software": None}
        figure.savefig(temporary, format=suffix, metadata=metadata, facecolor="white")


def _draw(
    axes: Any,
    result: BenchmarkResult,
    title: str,
    value: Callable[[Figures], float],
    upper: Callable[[Figures], float] | None,
) -> None:
    for name, (place, (label, points)) in itertools.product(result.contenders, enumerate(_series(result))):
        shades = SHADES[name]
        colour = shades[min(place + (1 if len(_series(result)) < 3 else 0), len(shades) - 1)]
        x = [_x(result, m) for m in points]
        y = [value(m.figures[name]) for m in points]
        style = dict(color=colour, marker=MARKERS[place % len(MARKERS)], ms=6, lw=2)
        axes.plot(x, y, label=f"{name}{label}", **style)
        if upper is not None:
            axes.fill_between(x, y, [upper(m.figures[name]) for m in points], color=colour, alpha=0.15, lw=0)
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    _dress(axes, sorted({_x(result, m) for m in result.measurements}), _by_tokens(result))


def _dress(axes: Any, ticks: Sequence[int], by_tokens: bool) -> None:
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlim(min(ticks) / 1.3, max(ticks) * 1.3)
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.25, high * 1.35)
    axes.set_xlabel("tokens" if by_tokens else "batch", color=INK)
    axes.grid(color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=FAINT, length=3)


def _label_ratios(axes: Any, result: BenchmarkResult) -> None:
    """How many times as fast as eager, above eager's points."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=3, foreground="white")]
    for measurement in result.measurements:
        if measurement.ratio is not None:
            place = (_x(result, measurement), measurement.figures["eager"].p50)
            style = dict(textcoords="offset points", ha="center", fontsize=8.5, color=SHADES["eager"][3])
            axes.annotate(format_ratio(measurement.ratio.median), place, xytext=(0, 9), path_effects=halo, **style)


def _by_tokens(result: BenchmarkResult) -> bool:
    return len({m.configuration.tokens for m in result.measurements}) > 1


def _x(result: BenchmarkResult, measurement: Measurement) -> int:
    configuration = measurement.configuration
    return configuration.tokens or 1 if _by_tokens(result) else configuration.batch


def _series(result: BenchmarkResult) -> list[tuple[str, list[Measurement]]]:
    """One line for each batch over the lengths, or one over the batches, with its points in order."""
    if not _by_tokens(result):
        return [("", sorted(result.measurements, key=lambda m: m.configuration.batch))]
    batches = sorted({m.configuration.batch for m in result.measurements})
    ordered = sorted(result.measurements, key=lambda m: m.configuration.tokens or 1)
    return [(f", batch {b}", [m for m in ordered if m.configuration.batch == b]) for b in batches]


def _title(result: BenchmarkResult) -> str:
    tokens = {m.configuration.tokens for m in result.measurements} - {None}
    placement = result.artifact["placement"]
    parts = [
        Path(result.artifact["path"]).resolve().name,
        f"{placement['provider']} on {placement['device']}",
        plural(result.settings["threads"], "thread"),
        *([f"{tokens.pop()} tokens"] if len(tokens) == 1 else []),
        *(["× = times as fast as eager PyTorch"] if "eager" in result.contenders else []),
        *(["NOISY RUN, do not trust"] if result.doubts else []),
    ]
    return "   ·   ".join(parts)
