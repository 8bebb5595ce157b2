"""How the errors are spread over all values, as a picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from osa_runtime.parity.certificate import Certificate
from osa_runtime.verification.page import figure as paint
from osa_runtime.verification.page.markup import Html
from osa_runtime.verification.page.parties import other_name, outputs, tolerances


def histogram_plot(certificate: Certificate) -> Html:
    """How the errors of all values of all outputs are spread."""
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
        axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=paint.ARTIFACT, ec=paint.PAPER, lw=1)
        for place in {float(limits.min()), float(limits.max())}:
            axes.axvline(place, ls="--", color=paint.INK, lw=1.1)
        axes.set(xlim=(np.floor(low), np.ceil(high)), xlabel=f"relative distance from {truth}", ylabel="values")
        _decades(axes.xaxis)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.grid(visible=False, axis="x")

    return paint.figure("histogram", 2.7, draw, caption, "Histogram of relative errors")


def _decades(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))
    axis.set_major_formatter(FuncFormatter(lambda exponent, _: paint.power(10.0**exponent)))
