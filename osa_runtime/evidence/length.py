"""Length: time and memory of a training step of a `SkiplessEncoder` against the number of tokens."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.evidence.claims import Claim
from osa_runtime.evidence.contenders import OSA, SOFTMAX_SKIPLESS, SOFTMAX_SKIPS, Contender
from osa_runtime.evidence.polynomial import slope
from osa_runtime.evidence.report import Findings, Picture, table
from osa_runtime.evidence.runs import Bench
from osa_runtime.models import EncoderConfig, SkiplessEncoder
from osa_runtime.plotting import legend_below, logarithmic

CONTENDERS = (OSA, SOFTMAX_SKIPLESS, SOFTMAX_SKIPS)
PAPER = "arXiv 2602.05996"
VOCABULARY = 16


@dataclasses.dataclass(frozen=True)
class LengthDesign:
    dim: int = 32
    heads: int = 4
    depth: int = 4
    lengths: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    repeats: int = 3


WHOLE = LengthDesign()
QUICK = LengthDesign(8, 2, 1, (32, 64), 1)


def claims(_: str) -> tuple[Claim, ...]:
    return (
        Claim(
            "A step of OSA takes time linear in the tokens: slope",
            "osa_time_slope",
            at_most=1.2,
            source=PAPER,
            in_quick=False,
        ),
        Claim("… and memory linear in them: slope", "osa_memory_slope", at_most=1.05, source=PAPER),
        Claim(
            "Softmax takes more time at the largest length: its step over OSA's",
            "softmax_over_osa",
            at_least=2.0,
            in_quick=False,
        ),
    )


def run(bench: Bench) -> Findings:
    design = QUICK if bench.quick else WHOLE
    asked = dataclasses.asdict(design)
    costs = {c.name: bench.once(f"cost-{c.name}", asked, partial(_costs, c, design)) for c in CONTENDERS}
    parts: list[str | Picture] = ["## The cost of a step\n", _picture(costs), _cost_table(costs)]
    return Findings(_measured(costs), parts, costs, asked)


def _costs(contender: Contender, design: LengthDesign) -> dict[str, Any]:
    """Seconds of a training step, and bytes that it keeps for the backward pass, by the number of tokens."""
    found: dict[str, Any] = {"tokens": list(design.lengths), "seconds": [], "bytes": []}
    sizes: dict[str, Any] = dict(vocabulary=VOCABULARY, classes=10, max_length=max(design.lengths))
    model = SkiplessEncoder(
        EncoderConfig(dim=design.dim, heads=design.heads, depth=design.depth, **sizes, **contender.fields)
    )
    for tokens in design.lengths:
        ids = torch.randint(VOCABULARY, (2, tokens), generator=torch.Generator().manual_seed(tokens))
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[1, tokens // 2 :] = False
        found["bytes"].append(_kept_bytes(model, ids, mask))
        found["seconds"].append(statistics.median(_step(model, ids, mask) for _ in range(design.repeats)))
    return found


def _step(model: nn.Module, ids: Tensor, mask: Tensor) -> float:
    start = time.process_time()  # other programs use the machine, too
    model(ids, mask).sum().backward()
    return time.process_time() - start


def _kept_bytes(model: nn.Module, ids: Tensor, mask: Tensor) -> int:
    """All storages that the forward pass keeps for the backward pass, each once."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(ids, mask)
    return sum(kept.values())


def _measured(costs: Mapping[str, Any]) -> dict[str, float]:
    found = costs["osa"]
    return {
        "osa_time_slope": slope(found["tokens"], found["seconds"]),
        "osa_memory_slope": slope(found["tokens"], found["bytes"]),
        "softmax_over_osa": costs["softmax"]["seconds"][-1] / found["seconds"][-1],
    }


def _cost_table(costs: Mapping[str, Any]) -> str:
    rows = [
        (
            c.title,
            *(f"{1e3 * s:.0f} ms, {b / 2**20:.0f} MiB" for s, b in zip(found["seconds"], found["bytes"], strict=True)),
        )
        for c in CONTENDERS
        for found in [costs[c.name]]
    ]
    text = "A step of two sequences, forward and backward: processor time, and memory kept for the backward pass"
    return f"{text}\n\n{table(('model', *(f'{n} tokens' for n in costs['osa']['tokens'])), rows)}"


def _picture(costs: Mapping[str, Any]) -> Picture:
    def draw(figure: Any) -> None:
        seconds, memory = figure.subplots(1, 2)
        for contender in CONTENDERS:
            found = costs[contender.name]
            style: dict[str, Any] = dict(color=contender.colour, marker="o", ms=4, lw=1.8, label=contender.title)
            seconds.plot(found["tokens"], [1e3 * value for value in found["seconds"]], **style)
            memory.plot(found["tokens"], [value / 2**20 for value in found["bytes"]], **style)
        for axes, title in ((seconds, "ms of a step"), (memory, "MiB kept for the backward pass")):
            logarithmic(axes.xaxis, ticks=costs["osa"]["tokens"])
            logarithmic(axes.yaxis)
            axes.set(xlabel="tokens", title=title)
        legend_below(figure, seconds, 3)

    return Picture("cost", "The cost of a training step against the number of tokens.", (9, 4), draw)
