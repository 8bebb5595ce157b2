"""The paper's experiment (arXiv 2602.05996): the same ViT with and without skips, on MNIST and on Fashion-MNIST.

Every model has a learning rate of its own, chosen on validation images by the same small search.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from osa_runtime.evidence import deployment
from osa_runtime.evidence.claims import Claim
from osa_runtime.evidence.contenders import (
    OSA,
    POLYNOMIAL,
    SOFTMAX_SKIPLESS,
    SOFTMAX_SKIPS,
    USUAL,
    Contender,
    conditioned,
)
from osa_runtime.evidence.report import Findings, Picture, number, table
from osa_runtime.evidence.runs import Bench
from osa_runtime.evidence.trained import accuracy, choose_rate, train_once, training_and_validation
from osa_runtime.plotting import legend_below

CONTENDERS: tuple[Contender, ...] = (
    OSA,
    SOFTMAX_SKIPLESS,
    SOFTMAX_SKIPS,
    USUAL,
    POLYNOMIAL,
    conditioned(OSA),
    conditioned(SOFTMAX_SKIPLESS),
    conditioned(USUAL, "svd"),
)
PAPER = {"osa": 97.2, "softmax": 94.6, "softmax-skips": 97.2}  # % on MNIST, as a summary of the paper reports them
SOURCE = "arXiv 2602.05996"


@dataclass(frozen=True)
class ClassificationDesign:
    """Sizes of the experiment: 28×28 pixels in patches of 7 are 16 tokens."""

    images: int = 40_000
    validation: int = 5_000
    depth: int = 8
    dim: int = 48
    heads: int = 4
    patch_size: int = 7
    batch_size: int = 64
    epochs: int = 4
    rates: tuple[float, ...] = (1e-3, 2e-3, 3e-3)
    seeds: tuple[int, ...] = (0, 1, 2)
    search_seed: int = 100
    tested: int | None = None

    def fields(self, contender: Contender, seed: int) -> dict[str, Any]:
        names = ("depth", "dim", "heads", "patch_size", "batch_size", "epochs")
        return {name: getattr(self, name) for name in names} | {"seed": seed, **contender.fields}


WHOLE = ClassificationDesign()
SMALLER = replace(WHOLE, images=20_000)  # for a second data set, with the first contenders
QUICK = ClassificationDesign(150, 50, 1, 8, 2, 14, 50, 1, (1e-3, 3e-3), (0,), tested=100)


def claims(name: str) -> tuple[Claim, ...]:
    where: dict[str, Any] = {"source": SOURCE if name == "mnist" else f"{SOURCE}, on other images", "in_quick": False}
    return (
        Claim(
            "OSA without skips is within the spread of softmax with them: its mean less their lowest seed, points",
            "osa_above_lowest_with_skips",
            at_least=0.0,
            **where,
        ),
        Claim(
            "OSA is better than softmax without skips, in points of accuracy",
            "osa_above_skipless",
            at_least=2.0,
            **where,
        ),
        *deployment.CLAIMS,
    )


def run(bench: Bench) -> Findings:
    design, contenders = (WHOLE, CONTENDERS) if bench.data == "mnist" else (SMALLER, CONTENDERS[:4])
    if bench.quick:
        design, contenders = QUICK, CONTENDERS[:3]
    data, validation = training_and_validation(bench, design.images, design.validation)
    rates, searched = {}, {}
    for contender in contenders:
        fields = design.fields(contender, design.search_seed)
        rates[contender.name], searched[contender.name] = choose_rate(
            bench, contender.name, validation, fields, design.rates
        )
    runs: dict[str, list[dict[str, Any]]] = {contender.name: [] for contender in contenders}
    trained: dict[str, float] = {}
    for seed in design.seeds:
        for contender in contenders:
            name = f"{contender.name}-seed-{seed}"
            fields = design.fields(contender, seed) | {"lr": rates[contender.name]}
            runs[contender.name].append(train_once(bench, name, data, fields))
            trained[name] = accuracy(runs[contender.name][-1])
    exports = deployment.deploy_all(bench, trained, limit=design.tested)
    parts: list[str | Picture] = [
        "## Accuracy\n",
        _table(runs, rates, searched),
        _curves(runs, design),
        _search_text(design),
        deployment.report(exports),
    ]
    results = {"rates": rates, "validation_accuracy": searched, "runs": runs, "exports": exports}
    return Findings(_measured(runs, exports), parts, results, {**asdict(design), "data": data.name})


def _of(runs: Mapping[str, Any]) -> list[Contender]:
    return [contender for contender in CONTENDERS if contender.name in runs]


def _measured(runs: Mapping[str, Sequence[Any]], exports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    found = {name: [100 * accuracy(run) for run in some] for name, some in runs.items()}
    return {
        "osa_above_lowest_with_skips": statistics.mean(found["osa"]) - min(found["softmax-skips"]),
        "osa_above_skipless": statistics.mean(found["osa"]) - statistics.mean(found["softmax"]),
        **deployment.measured(exports),
    }


def _table(
    runs: Mapping[str, Sequence[Any]], rates: Mapping[str, float], searched: Mapping[str, Mapping[str, float]]
) -> str:
    rows = []
    for contender in _of(runs):
        some = runs[contender.name]
        values = [100 * accuracy(run) for run in some]
        seconds = [sum(epoch["seconds"] for epoch in run["history"]) for run in some]
        paper = PAPER.get(contender.name)
        rows.append(
            (
                contender.title,
                f"{rates[contender.name]:g}",
                f"{statistics.mean(values):.2f}",
                f"{min(values):.2f} to {max(values):.2f}",
                ", ".join(f"{value:.2f}" for value in values),
                number(statistics.mean(seconds), ".0f"),
                "–" if paper is None else f"{paper:g}",
            )
        )
    columns = ("model", "rate", "mean, %", "spread, %", "seeds, %", "seconds", "paper, MNIST, %")
    diverged = [
        f"{contender.title}, rate {rate}"
        for contender in _of(runs)
        for rate, value in searched[contender.name].items()
        if value == 0
    ]
    note = f"\n\nDiverged in the search: {'; '.join(diverged)}." if diverged else ""
    return table(columns, rows) + note


def _search_text(design: ClassificationDesign) -> str:
    rates = ", ".join(f"{rate:g}" for rate in design.rates)
    return f"""## How the rates were chosen

Each model was trained with the rates {rates}, as long as in its runs and with a seed that is not used again. The rate
with the best accuracy on {design.validation} training images that no run trains on was taken. All models train with
AdamW, the same schedule and the same number of steps. The test images were used once, after that. The paper's figures
are from a summary of it; its model and training are larger."""


def _curves(runs: Mapping[str, Sequence[Any]], design: ClassificationDesign) -> Picture:
    steps = -(-design.images // design.batch_size)

    def draw(figure: Any) -> None:
        by_step, by_second = figure.subplots(1, 2, sharey=True)
        for contender in _of(runs):
            finished = [run["history"] for run in runs[contender.name] if run["history"]]
            if not finished:
                continue
            means = [
                statistics.mean(100 * e["test_accuracy"] for e in epochs) for epochs in zip(*finished, strict=True)
            ]
            seconds = [statistics.mean(e["seconds"] for e in epochs) for epochs in zip(*finished, strict=True)]
            style = dict(color=contender.colour, ls=contender.dashes, marker="o", ms=3.5, lw=1.6, label=contender.title)
            by_step.plot([steps * (i + 1) for i in range(len(means))], means, **style)
            by_second.plot([sum(seconds[: i + 1]) for i in range(len(means))], means, **style)
        by_step.set(xlabel="steps", ylabel="test accuracy, %")
        by_second.set(xlabel="seconds, shared machine")
        legend_below(figure, by_step, 2)

    return Picture(
        "curves", "Test accuracy after each epoch, mean of the seeds, against steps and seconds.", (9, 5.0), draw
    )
