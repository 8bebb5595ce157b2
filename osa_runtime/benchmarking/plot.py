"""Latency and throughput by batch and tokens as a figure."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from osa_runtime.benchmarking.result import ARTIFACT, BenchmarkResult, Figures, Measurement, format_ratio, plural
from osa_runtime.plotting import legend_below, logarithmic, write_figure

# Light for the smallest batch, dark for the largest.
SHADES = {
    ARTIFACT: ("#7cc4e0", "#3394bd", "#0b6e99", "#084c6a", "#04293a"),
    "eager": ("#f2b78a", "#e28743", "#c2601a", "#8f4410", "#5c2a07"),
}
MARKERS = "osD^v"


def draw_benchmark(result: BenchmarkResult, path: Path) -> None:
    """Write the figure; ``path`` ends in .png or .svg."""

    def draw(figure: Any) -> None:
        latency, throughput = figure.subplots(1, 2)
        _draw(latency, result, "Latency: median, shaded to p90 (ms)", lambda f: f.p50_ms, lambda f: f.p90_ms)
        _draw(throughput, result, "Throughput (rows/s)", lambda f: f.rows_per_second, None)
        _label_ratios(latency, result)
        legend_below(figure, latency)
        figure.suptitle(_title(result), fontsize=10.5, x=0.01, ha="left")

    write_figure(path, (10, 4.6), draw)


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
    ticks = sorted({_x(result, m) for m in result.measurements})
    logarithmic(axes.xaxis, ticks)
    logarithmic(axes.yaxis)
    axes.set_title(title)
    axes.set_xlabel("tokens" if _by_tokens(result) else "batch")
    axes.set_xlim(min(ticks) / 1.3, max(ticks) * 1.3)
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.25, high * 1.35)


def _label_ratios(axes: Any, result: BenchmarkResult) -> None:
    """Label eager's points with the artifact's speed relative to eager."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=3, foreground="white")]
    for measurement in result.measurements:
        if measurement.ratio is not None:
            place = (_x(result, measurement), measurement.figures["eager"].p50_ms)
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
