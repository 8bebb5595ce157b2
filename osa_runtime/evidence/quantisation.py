"""Few bits: accuracy with weights of 8, 6 and 4 bits, with and without skips.

arXiv 2605.25880 claims that residual-free models quantise better. Here the weights of all matrices are rounded,
symmetrically and with a scale for each output, as `osa quantize` does it for 8 bits; activations are not.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.evidence import deployment
from osa_runtime.evidence.claims import Claim
from osa_runtime.evidence.contenders import OSA, SOFTMAX_SKIPLESS, SOFTMAX_SKIPS
from osa_runtime.evidence.report import Findings, Picture, table
from osa_runtime.evidence.runs import Bench
from osa_runtime.evidence.trained import accuracy, train_once, training_and_validation
from osa_runtime.models import load_checkpoint
from osa_runtime.nn.projection import PackedProjection
from osa_runtime.plotting import legend_below
from osa_runtime.training import Dataset, load_dataset

CONTENDERS = (OSA, SOFTMAX_SKIPLESS, SOFTMAX_SKIPS)
BITS = (8, 6, 4)
PAPER = "arXiv 2605.25880"


@dataclasses.dataclass(frozen=True)
class QuantisationDesign:
    dim: int = 48
    heads: int = 4
    depth: int = 6
    seeds: tuple[int, ...] = (0, 1, 2)
    digits_epochs: int = 15
    mnist_images: int = 20_000
    mnist_epochs: int = 2
    lr: float = 1e-3


WHOLE = QuantisationDesign()
QUICK = QuantisationDesign(8, 2, 1, (0,), 1)


def claims(_: str) -> tuple[Claim, ...]:
    def better(data: str, in_quick: bool = False) -> Claim:
        text = f"Skipless OSA loses less at 4 bits than softmax with skips, {data}: difference of the losses, points"
        return Claim(text, f"gain_{data}", at_least=0.0, source=PAPER, in_quick=in_quick)

    return (
        better("digits"),
        better("mnist"),
        Claim(
            "8 bits cost OSA next to nothing: largest loss of a mean, points", "osa_loss_8", at_most=0.5, in_quick=False
        ),
        *deployment.CLAIMS,
    )


def run(bench: Bench) -> Findings:
    design = QUICK if bench.quick else WHOLE
    sets: dict[str, tuple[Dataset, dict[str, Any]]] = {
        "digits": (load_dataset("digits"), {"epochs": design.digits_epochs})
    }
    if not bench.quick:
        mnist, _ = training_and_validation(bench, design.mnist_images, 1)
        sets["mnist"] = (mnist, {"epochs": design.mnist_epochs, "batch_size": 64, "patch_size": 7})
    found: dict[str, Any] = {name: {} for name in sets}
    deployed: list[dict[str, Any]] = []
    for name, (data, recipe) in sets.items():
        trained: dict[str, float] = {}
        for contender in CONTENDERS:
            sizes = {key: getattr(design, key) for key in ("dim", "heads", "depth", "lr")}
            fields = {**sizes, **recipe, **contender.fields}
            found[name][contender.name] = []
            for seed in design.seeds:
                label = f"{name}-{contender.name}-seed-{seed}"
                trained[label] = accuracy(train_once(bench, label, data, {**fields, "seed": seed}))
                found[name][contender.name].append(_rounded(bench, label, data))
        deployed += deployment.deploy_all(bench, trained, data=name)
    parts = [part for name in found for part in (f"## {name}\n", _table(found[name]), _picture(name, found[name]))]
    measured = _measured(found) | deployment.measured(deployed)
    results = {"accuracy": found, "exports": deployed}
    parts = [*parts, deployment.report(deployed)]
    return Findings(measured, parts, results, dataclasses.asdict(design) | {"bits": BITS})


def _rounded(bench: Bench, name: str, data: Dataset) -> dict[str, Any]:
    """The test accuracy of a trained model in % with all its bits, and with fewer."""

    def measure() -> dict[str, float]:
        found = {}
        for bits in (None, *BITS):
            model = load_checkpoint(bench.folder(name))
            if bits is not None:
                round_weights(model, bits)
            found["float32" if bits is None else str(bits)] = 100 * _accuracy(model, data)
        return found

    return bench.once(f"{name}-bits", {"bits": BITS}, measure)


@torch.no_grad()
def _accuracy(model: nn.Module, data: Dataset) -> float:
    predicted = torch.cat([model(part).argmax(1) for part in torch.as_tensor(data.x_test).split(512)])
    return float((predicted == torch.as_tensor(data.y_test)).float().mean())


@torch.no_grad()
def round_weights(model: nn.Module, bits: int) -> None:
    """Round the weights of every product to ``bits``, with a scale for each output."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, PackedProjection)):
            module.weight.copy_(rounded(module.weight, bits))


def rounded(weight: Tensor, bits: int) -> Tensor:
    largest = 2 ** (bits - 1) - 1
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-30) / largest
    return (weight / scale).round().clamp(-largest, largest) * scale


def _mean(some: Sequence[Mapping[str, float]], bits: str) -> float:
    return statistics.mean(run[bits] for run in some)


def _loss(some: Sequence[Mapping[str, float]], bits: str) -> float:
    return _mean(some, "float32") - _mean(some, bits)


def _measured(found: Mapping[str, Any]) -> dict[str, float]:
    gains = {
        f"gain_{name}": _loss(by_model["softmax-skips"], "4") - _loss(by_model["osa"], "4")
        for name, by_model in found.items()
    }
    return {**gains, "osa_loss_8": max(_loss(by_model["osa"], "8") for by_model in found.values())}


def _table(by_model: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    def cell(some: Sequence[Mapping[str, float]], bits: str) -> str:
        values = [run[bits] for run in some]
        return f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"

    columns = ("float32", *map(str, BITS))
    rows = [(c.title, *(cell(by_model[c.name], bits) for bits in columns)) for c in CONTENDERS]
    return "Test accuracy in %, mean and range of the seeds\n\n" + table(
        ("model", "float32", *(f"{b} bits" for b in BITS)), rows
    )


def _picture(name: str, by_model: Mapping[str, Sequence[Mapping[str, float]]]) -> Picture:
    def draw(figure: Any) -> None:
        axes = figure.subplots()
        columns = ("float32", *map(str, BITS))
        for contender in CONTENDERS:
            some = by_model[contender.name]
            losses = [_loss(some, bits) for bits in columns]
            axes.plot(
                range(len(columns)), losses, marker="o", ms=4, lw=1.8, color=contender.colour, label=contender.title
            )
        axes.set_xticks(range(len(columns)), ["float32", *(f"{bits} bits" for bits in BITS)])
        axes.set(ylabel="points of accuracy lost, mean of the seeds", title=name)
        legend_below(figure, axes, 3)

    return Picture(f"bits-{name}", f"What fewer bits cost on {name}.", (7, 4), draw)
