"""The condition number of attention's Jacobian against α, N, depth and λ, at the start and after training.

The tokens have unit variance. A figure is the geometric mean over seeds.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.analysis.measures import condition_number, exponent_norms, through_depth
from osa_runtime.evidence import deployment
from osa_runtime.evidence.claims import Claim
from osa_runtime.evidence.contenders import OSA, SOFTMAX_SKIPLESS, SOFTMAX_SKIPS, Contender
from osa_runtime.evidence.report import Findings, Picture, number, table
from osa_runtime.evidence.runs import Bench
from osa_runtime.evidence.trained import train_once
from osa_runtime.models import EncoderConfig, SkiplessViT, load_checkpoint
from osa_runtime.models.stack import Stack
from osa_runtime.nn import OrthogonalSelfAttention
from osa_runtime.nn.spectral_conditioning import condition_from_svd
from osa_runtime.plotting import legend_below, logarithmic
from osa_runtime.training import load_dataset
from osa_runtime.training.model import initialise_usually

PAPER, SPECTRAL = "arXiv 2602.05996", "arXiv 2603.07162"
CONTENDERS = (OSA, SOFTMAX_SKIPLESS, SOFTMAX_SKIPS)
SINGULAR = 1e15  # float64 cannot tell a larger condition number from that of a singular matrix


@dataclasses.dataclass(frozen=True)
class JacobianDesign:
    dim: int = 32
    heads: int = 4
    tokens: int = 16
    seeds: int = 3
    alphas: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    lengths: tuple[int, ...] = (4, 8, 16, 32, 64)
    depths: tuple[int, ...] = (4, 8, 16, 32)
    lambdas: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    epochs: int = 12
    depth: int = 4


WHOLE = JacobianDesign()
QUICK = JacobianDesign(8, 2, 6, 1, (0.01, 1.0), (4, 8), (4,), (1.0,), 1, 3)


def claims(_: str) -> tuple[Claim, ...]:
    return (
        Claim(
            "At its start the OSA layer is near an isometry: condition number", "osa_start", at_most=2.0, source=PAPER
        ),
        Claim(
            "… at every number of tokens: the largest condition number", "osa_worst_length", at_most=2.0, source=PAPER
        ),
        Claim(
            "α must start small: condition number at α = 1 over that at α = 0.01",
            "osa_alpha_ratio",
            at_least=10.0,
            source=PAPER,
        ),
        Claim(
            "Softmax of the same size is worse: its condition number over OSA's",
            "softmax_ratio",
            at_least=100.0,
            source=PAPER,
        ),
        Claim(
            "Spectral conditioning lowers softmax's condition number: without, over with λI, λ = 1",
            "softmax_lowered",
            at_least=10.0,
            source=SPECTRAL,
        ),
        Claim(
            "The correction from the SVD lowers it for usual weights as well: without, over with λ = 1",
            "usual_lowered",
            at_least=1.0,
            source=SPECTRAL,
        ),
        Claim(
            "The OSA network stays near an isometry through depth: condition number at the largest depth",
            "osa_deep",
            at_most=1e3,
            source=PAPER,
            in_quick=False,
        ),
        Claim(
            "λI in both W_Q and W_K makes Q ≈ K for OSA: ‖S‖ with it, over without, λ = 1",
            "osa_weakened",
            at_most=0.5,
            in_quick=False,
        ),
        *deployment.CLAIMS,
    )


def run(bench: Bench) -> Findings:
    design = QUICK if bench.quick else WHOLE
    asked = dataclasses.asdict(design)
    found = {
        name: bench.once(name, asked, partial(part, design))
        for name, part in (("alpha", _by_alpha), ("length", _by_length), ("depth", _by_depth), ("lambda", _by_lambda))
    }
    found["trained"] = _after_training(bench, design)
    deployed = deployment.deploy_all(bench, {name: entry["accuracy"] for name, entry in found["trained"].items()})
    parts: list[str | Picture] = [
        "## The layer\n",
        _layer_picture(found),
        "## The network\n",
        _depth_table(found, design),
        "## Spectral conditioning\n",
        _lambda_picture(found),
        _lambda_table(found, design),
        CONDITIONING_NOTE,
        "## After training\n",
        _trained_table(found),
        deployment.report(deployed),
    ]
    measured = {**_measured(found), **deployment.measured(deployed)}
    return Findings(measured, parts, {**found, "exports": deployed}, asked)


CONDITIONING_NOTE = """
λI is added to W_Q, W_K and W_V alike, and the trained part starts at a tenth of λ. For softmax that makes the scores a
Gram matrix of the tokens, and W_V nearly λI. For OSA it makes Q ≈ K, so that S = c(QKᵀ − KQᵀ) nearly vanishes: the
layer is well conditioned because it attends to nothing. The correction from the SVD suits OSA: on the orthonormal rows
with which it starts, λ·U·Vᵀ is λ times the weights, Q and K stay orthogonal, and its effect is that of a larger α,
(1 + λ)²·α, with values larger by 1 + λ. For the same reason it does not help softmax from orthonormal weights: they are
conditioned as well as can be, and larger scores make the softmax sharper."""


def _layer(design: JacobianDesign, tokens: int, seed: int, fields: Mapping[str, Any]) -> tuple[nn.Module, Tensor]:
    """An attention layer as a model of that length has it, and tokens for it, in float64."""
    stack, x = _stack(design, tokens, 1, seed, fields)
    return stack.blocks[0].attention, x  # type: ignore[return-value]


def _stack(
    design: JacobianDesign, tokens: int, depth: int, seed: int, fields: Mapping[str, Any]
) -> tuple[Stack, Tensor]:
    sizes: dict[str, Any] = dict(
        features=design.dim, max_length=tokens, depth=depth, dim=design.dim, heads=design.heads
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        stack = Stack(EncoderConfig(classes=2, **sizes, **fields)).double()
        return stack, torch.randn(1, tokens, design.dim, dtype=torch.float64)


def _mean(design: JacobianDesign, measure: Callable[[int], float]) -> float:
    return statistics.geometric_mean(measure(seed) for seed in range(design.seeds))


def _layer_condition(design: JacobianDesign, tokens: int, fields: Mapping[str, Any]) -> float:
    return _mean(design, lambda seed: condition_number(*_layer(design, tokens, seed, fields)))


def _by_alpha(design: JacobianDesign) -> dict[str, Any]:
    osa = {str(alpha): _layer_condition(design, design.tokens, {"alpha": alpha}) for alpha in design.alphas}
    return {
        "osa": osa,
        "osa_default": _layer_condition(design, design.tokens, {}),
        "softmax": _layer_condition(design, design.tokens, SOFTMAX_SKIPLESS.fields),
    }


def _by_length(design: JacobianDesign) -> dict[str, Any]:
    return {
        contender.name: {str(n): _layer_condition(design, n, contender.fields) for n in design.lengths}
        for contender in (OSA, SOFTMAX_SKIPLESS)
    }


def _by_depth(design: JacobianDesign) -> dict[str, Any]:
    def measure(contender: Contender, depth: int) -> float:
        return _mean(design, lambda seed: _stack_condition(*_stack(design, 8, depth, seed, contender.fields)))

    return {c.name: {str(depth): measure(c, depth) for depth in design.depths} for c in CONTENDERS}


def _by_lambda(design: JacobianDesign) -> dict[str, Any]:
    """With λI and with the SVD's correction; softmax also from an ordinary ViT's first weights."""

    def identity(fields: Mapping[str, Any], value: float) -> Callable[[int], float]:
        spectral = {**fields, "conditioning": "spectral", "spectral_lambda": value}
        return lambda seed: condition_number(*_layer(design, design.tokens, seed, spectral))

    def decomposed(fields: Mapping[str, Any], value: float, usual: bool) -> Callable[[int], float]:
        def measure(seed: int) -> float:
            layer, x = _layer(design, design.tokens, seed, fields)
            _prepare(layer, value, usual, seed)
            return condition_number(layer, x)

        return measure

    softmax = SOFTMAX_SKIPLESS.fields
    methods: dict[str, Callable[[float], Callable[[int], float]]] = {
        "softmax, λI": lambda value: identity(softmax, value),
        "softmax, SVD": lambda value: decomposed(softmax, value, False),
        "softmax from usual weights, SVD": lambda value: decomposed(softmax, value, True),
        "OSA, λI": lambda value: identity({}, value),
        "OSA, SVD": lambda value: decomposed({}, value, False),
    }
    found: dict[str, Any] = {
        name: {str(value): _mean(design, method(value)) for value in design.lambdas} for name, method in methods.items()
    }
    found["without"] = {
        "softmax": _layer_condition(design, design.tokens, softmax),
        "OSA": _layer_condition(design, design.tokens, {}),
        "softmax from usual weights": _mean(design, decomposed(softmax, 0.0, True)),
    }
    return found | {"exponent": _exponents(design)}


def _prepare(layer: nn.Module, value: float, usual: bool, seed: int) -> None:
    if usual:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            initialise_usually(layer)
    if value:
        condition_from_svd(layer, value)


def _exponents(design: JacobianDesign) -> dict[str, float]:
    """‖S‖ without a correction, with λI and with the SVD's, λ = 1."""

    def norm(seed: int, fields: Mapping[str, Any], decomposed: bool = False) -> float:
        layer, x = _layer(design, design.tokens, seed, fields)
        assert isinstance(layer, OrthogonalSelfAttention)
        _prepare(layer, 1.0 if decomposed else 0.0, False, seed)
        return float(exponent_norms(layer, x).detach().mean())

    return {
        "without": _mean(design, lambda seed: norm(seed, {})),
        "λI": _mean(design, lambda seed: norm(seed, {"conditioning": "spectral"})),
        "SVD": _mean(design, lambda seed: norm(seed, {}, True)),
    }


def _after_training(bench: Bench, design: JacobianDesign) -> dict[str, Any]:
    """The Jacobian of the stack on the tokens of an image of a digit, before and after training."""
    digits = load_dataset("digits")
    image = torch.as_tensor(digits.x_test[:1]).double()
    found = {}
    for contender in CONTENDERS:
        fields = {"dim": design.dim, "heads": design.heads, "depth": design.depth, "epochs": design.epochs, "lr": 1e-3}
        run = train_once(bench, contender.name, digits, {**fields, **contender.fields})

        def measure(contender: Contender = contender) -> dict[str, float]:
            model = load_checkpoint(bench.folder(contender.name)).double()
            assert isinstance(model, SkiplessViT)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                first = SkiplessViT(model.config).double()
            return {"start": _image_condition(first, image), "end": _image_condition(model, image)}

        accuracy = run["history"][-1]["test_accuracy"]
        asked = dataclasses.asdict(design)
        found[contender.name] = {"accuracy": accuracy, **bench.once(f"{contender.name}-jacobian", asked, measure)}
    return found


def _image_condition(model: SkiplessViT, image: Tensor) -> float:
    return _stack_condition(model.stack, model.embed(model._patches(image)) + model.positions)


def _stack_condition(stack: Stack, x: Tensor) -> float:
    """Of the blocks alone: a final norm is singular by construction, since it removes the mean of a token."""
    return condition_number(lambda tokens: through_depth(stack, tokens)[-1], x)


def _condition(value: float | None) -> str:
    return "singular" if value is None or value > SINGULAR else number(value)


def _measured(found: Mapping[str, Any]) -> dict[str, float]:
    alphas, lambdas, exponent = found["alpha"], found["lambda"], found["lambda"]["exponent"]
    last = list(found["depth"]["osa"])[-1]
    return {
        "osa_start": alphas["osa_default"],
        "osa_worst_length": max(found["length"]["osa"].values()),
        "osa_alpha_ratio": alphas["osa"]["1.0"] / alphas["osa"]["0.01"],
        "softmax_ratio": alphas["softmax"] / alphas["osa_default"],
        "softmax_lowered": lambdas["without"]["softmax"] / lambdas["softmax, λI"]["1.0"],
        "usual_lowered": lambdas["without"]["softmax from usual weights"]
        / lambdas["softmax from usual weights, SVD"]["1.0"],
        "osa_deep": found["depth"]["osa"][last],
        "osa_weakened": exponent["λI"] / exponent["without"],
    }


def _depth_table(found: Mapping[str, Any], design: JacobianDesign) -> str:
    rows = [(c.title, *(_condition(found["depth"][c.name][str(d)]) for d in design.depths)) for c in CONTENDERS]
    text = "Condition number of the blocks on 8 tokens, by depth"
    return f"{text}\n\n{table(('model', *map(str, design.depths)), rows)}"


def _lambda_table(found: Mapping[str, Any], design: JacobianDesign) -> str:
    lambdas, exponent = found["lambda"], found["lambda"]["exponent"]
    names = [name for name in lambdas if name not in ("without", "exponent")]
    rows = [
        (
            name,
            _condition(lambdas["without"][name.rpartition(", ")[0]]),
            *(_condition(lambdas[name][str(v)]) for v in design.lambdas),
        )
        for name in names
    ]
    norms = (
        f"‖S‖ of OSA is {exponent['without']:.2g} without a correction and, for λ = 1, {exponent['λI']:.2g} with λI "
    )
    norms += f"and {exponent['SVD']:.2g} with that of the SVD."
    return f"{table(('layer, correction', 'without', *(f'λ = {v:g}' for v in design.lambdas)), rows)}\n\n{norms}"


def _trained_table(found: Mapping[str, Any]) -> str:
    rows = [
        (c.title, _condition(e["start"]), _condition(e["end"]), f"{100 * e['accuracy']:.1f}")
        for c in CONTENDERS
        for e in [found["trained"][c.name]]
    ]
    text = (
        "The blocks on the tokens of one digit, before and after a short training. Trained networks forget what does "
    )
    text += "not matter: singular values near zero are no longer a sign of collapse."
    return f"{text}\n\n{table(('model', 'at the start', 'after training', 'test accuracy, %'), rows)}"


def _layer_picture(found: Mapping[str, Any]) -> Picture:
    def draw(figure: Any) -> None:
        by_alpha, by_length = figure.subplots(1, 2)
        alphas = found["alpha"]
        _line(by_alpha, alphas["osa"], OSA)
        by_alpha.axhline(alphas["softmax"], color=SOFTMAX_SKIPLESS.colour, lw=1.6, ls="--")
        by_alpha.set(xlabel="α at the start", ylabel="condition number of the layer")
        for contender in (OSA, SOFTMAX_SKIPLESS):
            _line(by_length, found["length"][contender.name], contender)
        by_length.set(xlabel="tokens N, default α")
        _finish(by_alpha, by_length)
        legend_below(figure, by_length)

    return Picture(
        "layer", "The layer's Jacobian against α (dashed: softmax) and against the number of tokens.", (9, 3.8), draw
    )


def _lambda_picture(found: Mapping[str, Any]) -> Picture:
    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for name, values in found["lambda"].items():
            if name not in ("without", "exponent"):
                contender = OSA if name.startswith("OSA") else SOFTMAX_SKIPLESS
                marker = "s" if "SVD" in name else "o"
                dashes = ":" if "usual" in name else "--" if "SVD" in name else "-"
                points = [float(value) for value in values]
                axes.plot(
                    points,
                    [min(value, SINGULAR) for value in values.values()],
                    dashes,
                    marker=marker,
                    ms=4,
                    color=contender.colour,
                    label=name,
                )
        axes.set(xlabel="λ", ylabel="condition number of the layer")
        _finish(axes)
        legend_below(figure, axes, 3)

    return Picture(
        "lambda",
        "The layer's Jacobian with spectral conditioning, by λI and by the SVD; at 1e15 it is singular in float64.",
        (7, 4.2),
        draw,
    )


def _line(axes: Any, values: Mapping[str, float], contender: Contender) -> None:
    points = [float(value) for value in values]
    axes.plot(points, list(values.values()), marker="o", ms=4, lw=1.8, color=contender.colour, label=contender.title)


def _finish(*panels: Any) -> None:
    """Logarithmic axes, with ticks at the points that were measured."""
    for axes in panels:
        logarithmic(axes.xaxis, ticks=axes.lines[0].get_xdata())
        logarithmic(axes.yaxis, subs=(1.0,))
