"""Tokens through depth before any training: rank collapse with softmax, and its absence with OSA."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from osa_runtime.analysis.measures import effective_rank, mean_cosine, residual_from_rank_one, through_depth
from osa_runtime.evidence.claims import Claim
from osa_runtime.evidence.contenders import OSA, POLYNOMIAL, SOFTMAX_SKIPLESS, SOFTMAX_SKIPS, Contender
from osa_runtime.evidence.report import Findings, Picture, number, table
from osa_runtime.evidence.runs import Bench
from osa_runtime.models import EncoderConfig
from osa_runtime.models.stack import Stack
from osa_runtime.plotting import legend_below, logarithmic

CONTENDERS = (OSA, SOFTMAX_SKIPLESS, SOFTMAX_SKIPS, POLYNOMIAL)
SHOWN = (1, 2, 4, 8, 16, 32, 64)
PAPER, COLLAPSE = "arXiv 2602.05996", "arXiv 2602.05996, after Dong et al., 2021"
MEASURES = {
    "residual": ("residual from rank one", residual_from_rank_one),
    "cosine": ("mean cosine between tokens", mean_cosine),
    "rank": ("effective rank", effective_rank),
}


def claims(_: str) -> tuple[Claim, ...]:
    return (
        Claim(
            "OSA keeps tokens apart: residual from rank one after the last layer",
            "osa_residual",
            at_least=0.9,
            source=PAPER,
        ),
        Claim(
            "OSA keeps the rank: effective rank after the last layer, as a share of the input's",
            "osa_rank_share",
            at_least=0.5,
            source=PAPER,
        ),
        Claim(
            "Softmax without skips collapses: residual after 4 layers",
            "softmax_residual_4",
            at_most=1e-3,
            source=COLLAPSE,
        ),
        Claim(
            "OSA's gradients reach every layer: smallest norm at W_Q, as a share of the largest",
            "osa_gradient_share",
            at_least=0.01,
            source=PAPER,
        ),
        Claim(
            "Softmax's gradients do not: smallest norm at W_Q, as a share of the largest",
            "softmax_gradient_share",
            at_most=1e-6,
            source=PAPER,
        ),
    )


def run(bench: Bench) -> Findings:
    sizes = {"depth": 8, "tokens": 32, "dim": 32} if bench.quick else {"depth": 64, "tokens": 64, "dim": 64}
    sizes |= {"heads": 4, "sequences": 2, "seed": 0}
    found = {
        contender.name: bench.once(contender.name, {**sizes, **contender.fields}, partial(_measure, contender, sizes))
        for contender in CONTENDERS
    }
    parts: list[str | Picture] = [
        "## Through depth\n",
        _depth_picture(found),
        _table(found),
        "## Gradients\n",
        _gradient_picture(found),
        NOTE,
    ]
    return Findings(_measured(found), parts, found, sizes)


NOTE = """Polynomial attention without normalisation overflows within a few layers (its output grows like the seventh
power of its input), so it is shown with skips and norm only. Everything is in float64: below 1e-16 a residual is
rounding."""


def _measure(contender: Contender, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Per layer, the mean over the sequences of each measure, and the gradient's norm at W_Q."""
    config = EncoderConfig(
        classes=2,
        features=sizes["dim"],
        max_length=sizes["tokens"],
        depth=sizes["depth"],
        dim=sizes["dim"],
        heads=sizes["heads"],
        **contender.fields,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sizes["seed"])
        stack = Stack(config).double()
        x = torch.randn(sizes["sequences"], sizes["tokens"], sizes["dim"], dtype=torch.float64)
        direction = torch.randn_like(x)
    layers = through_depth(stack, x)
    (layers[-1] * direction).sum().backward()
    found = {
        key: [float(measure(tokens.detach()).mean()) for tokens in layers] for key, (_, measure) in MEASURES.items()
    }
    return {**found, "gradient": [_query_gradient(block.attention.project) for block in stack.blocks]}  # type: ignore[union-attr]


def _query_gradient(project: Any) -> float:
    gradient: Tensor = project.weight.grad
    return float(gradient.reshape(project.heads, 3, project.width, project.dim)[:, 0].norm())


def _measured(found: Mapping[str, Any]) -> dict[str, float]:
    osa, softmax = found["osa"], found["softmax"]
    return {
        "osa_residual": osa["residual"][-1],
        "osa_rank_share": osa["rank"][-1] / osa["rank"][0],
        "softmax_residual_4": softmax["residual"][4],
        "osa_gradient_share": min(osa["gradient"]) / max(osa["gradient"]),
        "softmax_gradient_share": min(softmax["gradient"]) / max(softmax["gradient"]),
    }


def _table(found: Mapping[str, Any]) -> str:
    depth = len(found["osa"]["residual"]) - 1
    shown = [layer for layer in SHOWN if layer <= depth]
    rows = [
        (contender.title, *(number(found[contender.name]["residual"][layer], ".2g") for layer in shown))
        for contender in CONTENDERS
    ]
    return "Residual from rank one after layer …\n\n" + table(("model", *map(str, shown)), rows)


def _depth_picture(found: Mapping[str, Any]) -> Picture:
    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 3)
        for axes, (key, (title, _)) in zip(panels, MEASURES.items(), strict=True):
            for contender in CONTENDERS:
                values = found[contender.name][key]
                if key == "residual":
                    values = [max(value, 1e-17) for value in values]
                axes.plot(values, color=contender.colour, lw=1.8, label=contender.title)
            axes.set(title=title, xlabel="layer")
        logarithmic(panels[0].yaxis, ticks=[10.0**power for power in range(-16, 1, 4)])
        legend_below(figure, panels[0], 4)

    caption = (
        "Tokens through a stack at initialisation: apart with OSA, all alike after a few layers with skipless softmax."
    )
    return Picture("depth", caption, (10, 3.6), draw)


def _gradient_picture(found: Mapping[str, Any]) -> Picture:
    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for contender in CONTENDERS:
            values = found[contender.name]["gradient"]
            places = range(1, len(values) + 1)
            axes.plot(places, [max(v, 1e-40) for v in values], color=contender.colour, lw=1.8, label=contender.title)
        logarithmic(axes.yaxis, subs=(1.0,))
        axes.set(xlabel="layer", ylabel="‖∂loss/∂W_Q‖")
        legend_below(figure, axes, 2)

    return Picture("gradients", "The gradient at W_Q of each layer, for a random linear loss.", (7, 3.8), draw)
