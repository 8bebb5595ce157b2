"""Depth: final accuracy, and steps to a given accuracy, with and without skips, on the 8×8 digits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from osa_runtime.evidence import deployment
from osa_runtime.evidence.claims import Claim
from osa_runtime.evidence.contenders import OSA, OSA_SKIPS, SOFTMAX_SKIPLESS, SOFTMAX_SKIPS, Contender
from osa_runtime.evidence.report import Findings, Picture, table
from osa_runtime.evidence.runs import Bench
from osa_runtime.evidence.trained import accuracy, train_once
from osa_runtime.plotting import legend_below, logarithmic
from osa_runtime.training import load_dataset
from osa_runtime.training.settings import default_lr

CONTENDERS = (OSA, SOFTMAX_SKIPLESS, OSA_SKIPS, SOFTMAX_SKIPS)
PAPER = "arXiv 2602.05996"
TARGET = 0.8  # the accuracy to which steps are counted


@dataclasses.dataclass(frozen=True)
class DepthDesign:
    depths: tuple[int, ...] = (4, 8, 16, 32, 64)
    dim: int = 32
    heads: int = 4
    epochs: int = 15
    batch_size: int = 32
    seed: int = 0


WHOLE = DepthDesign()
QUICK = DepthDesign((1, 2), 8, 2, 1, 256)


def claims(_: str) -> tuple[Claim, ...]:
    return (
        Claim(
            "OSA trains without skips at depth 64: test accuracy, %",
            "osa_deepest",
            at_least=80.0,
            source=PAPER,
            in_quick=False,
        ),
        Claim(
            "Softmax without skips does not: test accuracy at depth 64, %",
            "softmax_deepest",
            at_most=50.0,
            source=PAPER,
            in_quick=False,
        ),
        Claim(
            "Skipless OSA at its best depth is as good as softmax with skips at its own: points",
            "best_difference",
            at_least=-2.0,
            source=PAPER,
            in_quick=False,
        ),
        *deployment.CLAIMS,
    )


def run(bench: Bench) -> Findings:
    design = QUICK if bench.quick else WHOLE
    digits = load_dataset("digits")
    runs: dict[str, dict[int, Any]] = {contender.name: {} for contender in CONTENDERS}
    for depth in design.depths:
        for contender in CONTENDERS:
            sizes = {name: getattr(design, name) for name in ("dim", "heads", "epochs", "batch_size", "seed")}
            fields = {**sizes, "depth": depth, "lr": default_lr(depth), **contender.fields}
            runs[contender.name][depth] = train_once(bench, _name(contender, depth), digits, fields)
    steps = -(-len(digits.y_train) // design.batch_size)
    trained = {_name(c, depth): accuracy(run) for c in CONTENDERS for depth, run in runs[c.name].items()}
    deployed = deployment.deploy_all(bench, trained)
    measured = {**_measured(runs), **deployment.measured(deployed)}
    setting = {**dataclasses.asdict(design), "rate": "1e-3, beyond depth 16 3e-4, for all models", "data": digits.name}
    parts: list[str | Picture] = [
        "## Accuracy and steps\n",
        _picture(runs, design),
        _table(runs, design, steps),
        NOTE,
        deployment.report(deployed),
    ]
    return Findings(measured, parts, {"runs": runs, "exports": deployed}, setting)


def _name(contender: Contender, depth: int) -> str:
    return f"{contender.name}-depth-{depth}"


NOTE = "One seed for each; the rate depends on the depth alone, and was chosen for OSA on validation folds."


def _measured(runs: Mapping[str, Mapping[int, Any]]) -> dict[str, float]:
    found = {name: [100 * accuracy(run) for run in by_depth.values()] for name, by_depth in runs.items()}
    return {
        "osa_deepest": found["osa"][-1],
        "softmax_deepest": found["softmax"][-1],
        "best_difference": max(found["osa"]) - max(found["softmax-skips"]),
    }


def steps_to(run: Mapping[str, Any], target: float, steps: int) -> int | None:
    """The steps until the test accuracy was first ``target``, counted in whole epochs; None if it never was."""
    reached = [epoch["epoch"] for epoch in run["history"] if epoch["test_accuracy"] >= target]
    return steps * reached[0] if reached else None


def _table(runs: Mapping[str, Mapping[int, Any]], design: DepthDesign, steps: int) -> str:
    def cell(run: Mapping[str, Any]) -> str:
        if not run["history"]:
            return "diverged"
        reached = steps_to(run, TARGET, steps)
        return f"{100 * accuracy(run):.1f} ({'never' if reached is None else reached})"

    rows = [(c.title, *(cell(runs[c.name][depth]) for depth in design.depths)) for c in CONTENDERS]
    text = f"Test accuracy in %, and in brackets the steps until it was first {100 * TARGET:g} %, by depth"
    return f"{text}\n\n{table(('model', *map(str, design.depths)), rows)}"


def _picture(runs: Mapping[str, Mapping[int, Any]], design: DepthDesign) -> Picture:
    def draw(figure: Any) -> None:
        final, history = figure.subplots(1, 2)
        deepest = design.depths[-1]
        for contender in CONTENDERS:
            by_depth = runs[contender.name]
            values = [100 * accuracy(run) if run["history"] else math.nan for run in by_depth.values()]
            style = dict(color=contender.colour, marker="o", ms=4, lw=1.8, label=contender.title)
            final.plot(design.depths, values, **style)
            curve = [100 * epoch["test_accuracy"] for epoch in by_depth[deepest]["history"]]
            history.plot(range(1, len(curve) + 1), curve, **style)
        logarithmic(final.xaxis, ticks=design.depths)
        final.set(xlabel="depth", ylabel="test accuracy, %", title="at the end")
        history.set(xlabel="epoch", title=f"depth {deepest}")
        legend_below(figure, final, 4)

    return Picture(
        "depth", "Test accuracy by depth at the end of training, and during training at the largest.", (9.5, 4), draw
    )
