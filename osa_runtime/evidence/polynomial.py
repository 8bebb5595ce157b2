"""The norm of the attention matrix, and of its gradient, against the number of tokens and through training.

arXiv 2410.18613 explains softmax by its norm, and takes xᵖ/√N in its place, whose norm grows like √N at the start.
An orthogonal matrix has the norm √N exactly: the link between the two papers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from osa_runtime.analysis.measures import layers_of, matrices, recorded_inputs
from osa_runtime.evidence import deployment
from osa_runtime.evidence.claims import Claim
from osa_runtime.evidence.contenders import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, SOFTMAX_SKIPS, Contender
from osa_runtime.evidence.contenders import OSA as OSA_SKIPLESS
from osa_runtime.evidence.contenders import POLYNOMIAL as CUBIC
from osa_runtime.evidence.report import Findings, Picture, number, table
from osa_runtime.evidence.runs import Bench
from osa_runtime.evidence.trained import accuracy, train_once
from osa_runtime.models import SkiplessViT, load_checkpoint
from osa_runtime.ops.attention import attention_matrix
from osa_runtime.plotting import legend_below, logarithmic
from osa_runtime.training import load_dataset

PAPER, LINK = "arXiv 2410.18613", "arXiv 2602.05996 and 2410.18613"
WIDTH = 16
PROBES = 8  # of Hutchinson's estimate of the gradient's norm
LINEAR = Contender("linear", "polynomial (p = 1), skips and norm", ORANGE, {**CUBIC.fields, "power": 1})
TRAINED = (OSA_SKIPLESS, SOFTMAX_SKIPS, CUBIC, LINEAR)

Matrix = Callable[[Tensor, Tensor], Tensor]


def _power(p: int) -> Matrix:
    return lambda q, k: (q @ k.mT / WIDTH**0.5) ** p / q.size(-2) ** 0.5


def _softmax(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT / WIDTH**0.5).softmax(-1)


def _orthogonal(q: Tensor, k: Tensor) -> Tensor:
    return attention_matrix(q, k, 0.2 / q.size(-2) / WIDTH**0.5)


KINDS: dict[str, tuple[Matrix, str]] = {
    "OSA": (_orthogonal, BLUE),
    "softmax": (_softmax, GREEN),
    "x/√N": (_power(1), ORANGE),
    "x²/√N": (_power(2), SKY),
    "x³/√N": (_power(3), PURPLE),
    "x³, no scale": (lambda q, k: (q @ k.mT / WIDTH**0.5) ** 3, BLACK),
}


def claims(_: str) -> tuple[Claim, ...]:
    half: dict[str, Any] = {"at_least": 0.4, "at_most": 0.6, "source": PAPER}
    return (
        Claim("OSA's ‖A‖ is √N: largest relative difference", "osa_from_root", at_most=1e-10, source=LINK),
        Claim("‖A‖ of x/√N grows like √N: slope", "slope_linear", **half),
        Claim("‖A‖ of x³/√N grows like √N: slope", "slope_cubic", **half),
        Claim("The gradient's norm of x/√N grows like √N: slope", "gradient_slope_linear", **half),
        Claim("The gradient's norm of x³/√N grows like √N: slope", "gradient_slope_cubic", **half),
        Claim(
            "Without the scale the norm of x³ grows like N: slope",
            "slope_unscaled",
            at_least=0.9,
            at_most=1.1,
            source=PAPER,
        ),
        Claim("Softmax's ‖A‖ is at most √N: largest ratio", "softmax_over_root", at_most=1.0, source=PAPER),
        Claim(
            "OSA's ‖A‖ is √N through training, too: largest relative difference",
            "osa_from_root_trained",
            at_most=1e-5,
            source=LINK,
        ),
        *deployment.CLAIMS,
    )


def run(bench: Bench) -> Findings:
    lengths = (16, 64, 256) if bench.quick else (16, 32, 64, 128, 256, 512, 1024)
    fields = {"dim": 8, "heads": 2, "depth": 1, "epochs": 2} if bench.quick else {"dim": 32, "depth": 4, "epochs": 10}
    seeds = 8 if bench.quick else 4
    norms = {
        kind: bench.once(
            f"norm-{index}",
            {"kind": kind, "lengths": lengths, "seeds": seeds},
            partial(_norms, kind, lengths, seeds),
        )
        for index, kind in enumerate(KINDS)
    }
    training = {contender.name: _through_training(bench, contender, fields) for contender in TRAINED}
    trained = {
        _name(c, epochs): accuracy
        for c in TRAINED
        for epochs, accuracy in zip(training[c.name]["epochs"], training[c.name]["accuracy"], strict=True)
        if epochs
    }
    deployed = deployment.deploy_all(bench, trained)
    parts: list[str | Picture] = [
        "## Against the number of tokens\n",
        _length_picture(norms),
        _slopes(norms),
        "## Through training\n",
        _training_picture(training),
        _training_table(training),
        deployment.report(deployed),
    ]
    setting = {"lengths": lengths, "width of a head": WIDTH, "seeds": seeds, **fields, "trained on": "digits"}
    measured = {**_measured(norms, training), **deployment.measured(deployed)}
    results = {"norms": norms, "training": training, "exports": deployed}
    return Findings(measured, parts, results, setting)


def _name(contender: Contender, epochs: int) -> str:
    return f"{contender.name}-epochs-{epochs}"


def _norms(kind: str, lengths: Sequence[int], seeds: int) -> dict[str, Any]:
    """‖A‖ and ‖∂A/∂Q‖ for queries and keys of unit variance, mean squares over the seeds."""
    matrix = KINDS[kind][0]
    found: dict[str, Any] = {"tokens": list(lengths), "norm": [], "gradient": []}
    for tokens in lengths:
        generator = torch.Generator().manual_seed(tokens)
        q, k = (torch.randn(seeds, tokens, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
        q.requires_grad_()
        a = matrix(q, k)
        found["norm"].append(math.sqrt(float(a.detach().square().sum() / seeds)))
        found["gradient"].append(math.sqrt(_gradient_square(a, q, generator) / seeds))
    return found


def _gradient_square(a: Tensor, q: Tensor, generator: torch.Generator) -> float:
    """‖∂A/∂Q‖²: the mean of ‖Jᵀv‖² over random v of unit variance."""
    total = 0.0
    for _ in range(PROBES):
        v = torch.randn(a.shape, generator=generator, dtype=torch.float64)
        (gradient,) = torch.autograd.grad(a, q, v, retain_graph=True)
        total += float(gradient.square().sum())
    return total / PROBES


def slope(tokens: Sequence[float], values: Sequence[float]) -> float:
    """Of the line of least squares through the logarithms."""
    x, y = ([math.log(value) for value in some] for some in (tokens, values))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def _through_training(bench: Bench, contender: Contender, fields: Mapping[str, Any]) -> dict[str, Any]:
    """‖A‖/√N of every layer at the start, and at the ends of runs of 1, 2, 4, … epochs."""
    digits = load_dataset("digits")
    images = torch.as_tensor(digits.x_test[:32])
    lengths = [epochs for epochs in (1, 2, 4, 10) if epochs <= fields["epochs"]]
    asked = {**fields, **contender.fields}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = SkiplessViT(_config(digits, asked)).double()
    found: dict[str, Any] = {"epochs": [0, *lengths], "norm": [_relative_norms(first, images)], "accuracy": [None]}
    for epochs in lengths:
        name = _name(contender, epochs)
        run = train_once(bench, name, digits, {**asked, "epochs": epochs, "lr": 1e-3})
        model = load_checkpoint(bench.folder(name)).double()
        assert isinstance(model, SkiplessViT)
        found["norm"].append(_relative_norms(model, images))
        found["accuracy"].append(accuracy(run))
    return found


def _config(digits: Any, fields: Mapping[str, Any]) -> Any:
    from osa_runtime.training import TrainingSettings
    from osa_runtime.training.model import model_config

    return model_config(digits, TrainingSettings(**fields).resolved(digits.image_size))


@torch.no_grad()
def _relative_norms(model: SkiplessViT, images: Tensor) -> list[float]:
    """‖A‖/√N, the root of the mean square over images and heads, for each layer."""
    with recorded_inputs(model) as seen:
        model(images.double())
    found = []
    for name, layer in layers_of(model).items():
        a = matrices(layer, *seen[name])
        found.append(math.sqrt(float(a.square().sum((-2, -1)).mean()) / a.size(-1)))
    return found


def _measured(norms: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, float]:
    def slope_of(kind: str, key: str) -> float:
        return slope(norms[kind]["tokens"], norms[kind][key])

    def ratios(kind: str) -> list[float]:
        return [value / math.sqrt(n) for n, value in zip(norms[kind]["tokens"], norms[kind]["norm"], strict=True)]

    return {
        "osa_from_root": max(abs(ratio - 1) for ratio in ratios("OSA")),
        "slope_linear": slope_of("x/√N", "norm"),
        "slope_cubic": slope_of("x³/√N", "norm"),
        "gradient_slope_linear": slope_of("x/√N", "gradient"),
        "gradient_slope_cubic": slope_of("x³/√N", "gradient"),
        "slope_unscaled": slope_of("x³, no scale", "norm"),
        "softmax_over_root": max(ratios("softmax")),
        "osa_from_root_trained": max(abs(value - 1) for layer in training["osa"]["norm"] for value in layer),
    }


def _slopes(norms: Mapping[str, Any]) -> str:
    rows = [
        (
            kind,
            *(number(slope(found["tokens"], found[key]), ".2f") for key in ("norm", "gradient")),
            number(found["norm"][-1] / math.sqrt(found["tokens"][-1])),
        )
        for kind, found in norms.items()
    ]
    columns = ("A", "slope of ‖A‖", "slope of ‖∂A/∂Q‖", f"‖A‖/√N at N = {norms['OSA']['tokens'][-1]}")
    return table(columns, rows)


def _training_table(training: Mapping[str, Any]) -> str:
    rows = []
    for contender in TRAINED:
        found = training[contender.name]
        means = [sum(layer) / len(layer) for layer in found["norm"]]
        rows.append((contender.title, *(number(value) for value in means), f"{100 * found['accuracy'][-1]:.1f}"))
    epochs = training["osa"]["epochs"]
    text = "‖A‖/√N, mean over the layers, after … epochs. Each is the end of a run of that length."
    return f"{text}\n\n{table(('model', *map(str, epochs), 'accuracy at the end, %'), rows)}"


def _length_picture(norms: Mapping[str, Any]) -> Picture:
    def draw(figure: Any) -> None:
        for axes, (key, title) in zip(figure.subplots(1, 2), (("norm", "‖A‖"), ("gradient", "‖∂A/∂Q‖")), strict=True):
            for kind, found in norms.items():
                axes.plot(found["tokens"], found[key], marker="o", ms=3.5, lw=1.6, color=KINDS[kind][1], label=kind)
            tokens = norms["OSA"]["tokens"]
            axes.plot(tokens, [2.2 * math.sqrt(n) for n in tokens], ":", color=BLACK, lw=1, label="slope ½")
            logarithmic(axes.xaxis, ticks=tokens)
            logarithmic(axes.yaxis, subs=(1.0,))
            axes.set(title=title, xlabel="tokens N")
        legend_below(figure, axes, 7)

    caption = (
        "Norms of the attention matrix and of its gradient for queries and keys of unit variance. OSA's is √N exactly."
    )
    return Picture("norms", caption, (9.5, 4), draw)


def _training_picture(training: Mapping[str, Any]) -> Picture:
    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for contender in TRAINED:
            found = training[contender.name]
            means = [sum(layer) / len(layer) for layer in found["norm"]]
            axes.plot(found["epochs"], means, marker="o", ms=4, lw=1.8, color=contender.colour, label=contender.title)
        logarithmic(axes.yaxis)
        axes.set(xlabel="epochs of training", ylabel="‖A‖/√N, mean over the layers")
        legend_below(figure, axes, 2)

    return Picture("training", "The norm of attention through training: 1 for OSA at any time.", (7, 4), draw)
