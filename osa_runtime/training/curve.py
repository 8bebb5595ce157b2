"""The learning curve of a run as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from osa_runtime.atomic import atomic_file
from osa_runtime.training.dependencies import require
from osa_runtime.training.loop import EpochRecord

_TRAIN, _TEST, _INK, _FAINT = "#9aa5b1", "#0b6e99", "#52606d", "#e4e7eb"


def draw_curve(history: Sequence[EpochRecord], title: str, path: Path) -> None:
    """Loss and accuracy against epochs, side by side, into a PNG at ``path``."""
    require("matplotlib")
    # The object interface, not pyplot: no global state, no window, whatever backend the user has configured.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    last = history[-1]
    for axes, quantity, factor in zip(figure.subplots(1, 2), ("loss", "accuracy"), (1.0, 100.0), strict=True):
        _plot(axes, history, quantity, factor)
        _dress(axes)
    loss, accuracy = figure.axes
    loss.set_title(f"Cross-entropy · last test {last.test_loss:.3f}", fontsize=10, loc="left", color=_INK)
    accuracy.set_title(f"Accuracy · last test {100 * last.test_accuracy:.2f} %", fontsize=10, loc="left", color=_INK)
    accuracy.yaxis.set_major_formatter("{x:g} %")
    _logarithmic_if_wide(loss)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left", fontweight="bold")
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png")


def _plot(axes: Any, history: Sequence[EpochRecord], quantity: str, factor: float) -> None:
    epochs = [record.epoch for record in history]
    for part, colour in (("train", _TRAIN), ("test", _TEST)):
        values = [factor * getattr(record, f"{part}_{quantity}") for record in history]
        axes.plot(epochs, values, color=colour, lw=2, marker="o", ms=3.5, label=part)


def _dress(axes: Any) -> None:
    axes.set_xlabel("epoch", color=_INK)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", color=_FAINT)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK, length=3)
    axes.legend(frameon=False)


def _logarithmic_if_wide(axes: Any) -> None:
    """A loss that falls tenfold shows its end only on a logarithmic axis; a smaller fall has ugly ticks there."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axes.dataLim.intervaly
    if low > 0 and high / low > 10:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 100 else (1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
