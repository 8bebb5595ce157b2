"""Length: ListOps of variable length with a `SkiplessEncoder`, and the cost of a step against the number of tokens."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from osa_runtime.evidence.claims import Claim
from osa_runtime.evidence.contenders import OSA, SOFTMAX_SKIPLESS, SOFTMAX_SKIPS, Contender
from osa_runtime.evidence.list_operations import TOKENS, write_list_operations
from osa_runtime.evidence.polynomial import slope
from osa_runtime.evidence.report import Findings, Picture, number, table
from osa_runtime.evidence.runs import Bench
from osa_runtime.evidence.trained import accuracy, deploy_once, train_once
from osa_runtime.models import EncoderConfig, SkiplessEncoder
from osa_runtime.plotting import legend_below, logarithmic
from osa_runtime.training import SequenceDataset, load_sequences

CONTENDERS = (OSA, SOFTMAX_SKIPLESS, SOFTMAX_SKIPS)
PAPER = "arXiv 2602.05996"


@dataclasses.dataclass(frozen=True)
class LengthDesign:
    longest: int = 512
    train: int = 4000
    test: int = 1000
    dim: int = 32
    heads: int = 4
    depth: int = 4
    epochs: int = 6
    batch_size: int = 32
    lr: float = 1e-3
    lengths: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    repeats: int = 3


WHOLE = LengthDesign()
QUICK = LengthDesign(24, 60, 30, 8, 2, 1, 1, 20, 1e-3, (32, 64), 1)


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
            "OSA without skips is as accurate as softmax with them: difference, points",
            "osa_above_skips",
            at_least=-2.0,
            source=PAPER,
            in_quick=False,
        ),
        Claim("OSA is better than the most frequent class: points", "osa_above_chance", at_least=5.0, in_quick=False),
        Claim("The exported OSA model answers as eager does: differing classes, %", "differing", at_most=0.1),
    )


def run(bench: Bench) -> Findings:
    design = QUICK if bench.quick else WHOLE
    data = _sequences(bench, design)
    runs, asked = {}, {name: getattr(design, name) for name in ("dim", "heads", "depth", "epochs", "batch_size", "lr")}
    for contender in CONTENDERS:
        runs[contender.name] = train_once(bench, contender.name, data, {**asked, **contender.fields})
    test = _test_file(bench, data)
    exported = deploy_once(bench, OSA.name, data=test, form="lowrank")
    costs = {
        c.name: bench.once(f"cost-{c.name}", dataclasses.asdict(design), partial(_costs, c, design)) for c in CONTENDERS
    }
    chance = float(np.bincount(data.y_test).max() / len(data.y_test))
    parts: list[str | Picture] = [
        "## Accuracy\n",
        _accuracies(runs, chance),
        "## The cost of a step\n",
        _picture(costs),
        _cost_table(costs),
        "## Exported\n",
        "The OSA encoder was exported with dynamic batch and length, and run in ONNX Runtime on the test sequences: "
        + ("it diverged." if exported is None else exported.get("refused") or f"{exported['differ']} classes differ."),
    ]
    results = {"runs": runs, "costs": costs, "exported": exported, "most_frequent_class": chance}
    setting = {**dataclasses.asdict(design), "data": "ListOps, a quarter of the longest to the longest"}
    return Findings(_measured(runs, costs, exported, chance), parts, results, setting)


def _sequences(bench: Bench, design: LengthDesign) -> SequenceDataset:
    path = bench.folder("list-operations.npz")
    if not path.exists():
        write_list_operations(path, design.train, design.test, design.longest)
    return load_sequences(path)


def _test_file(bench: Bench, data: SequenceDataset) -> Path:
    path = bench.folder("list-operations-test.npz")
    np.savez(path, tokens=data.x_test, mask=data.mask_test, y=data.y_test)
    return path


def _costs(contender: Contender, design: LengthDesign) -> dict[str, Any]:
    """Seconds of a training step, and bytes that it keeps for the backward pass, by the number of tokens."""
    found: dict[str, Any] = {"tokens": list(design.lengths), "seconds": [], "bytes": []}
    sizes: dict[str, Any] = dict(vocabulary=len(TOKENS), classes=10, max_length=max(design.lengths))
    model = SkiplessEncoder(
        EncoderConfig(dim=design.dim, heads=design.heads, depth=design.depth, **sizes, **contender.fields)
    )
    for tokens in design.lengths:
        ids = torch.randint(len(TOKENS), (2, tokens), generator=torch.Generator().manual_seed(tokens))
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


def _measured(
    runs: Mapping[str, Any], costs: Mapping[str, Any], exported: Mapping[str, Any] | None, chance: float
) -> dict[str, float]:
    osa, found = 100 * accuracy(runs["osa"]), costs["osa"]
    differing = (exported or {}).get("differ")
    return {
        "osa_time_slope": slope(found["tokens"], found["seconds"]),
        "osa_memory_slope": slope(found["tokens"], found["bytes"]),
        "osa_above_skips": osa - 100 * accuracy(runs["softmax-skips"]),
        "osa_above_chance": osa - 100 * chance,
        "differing": float("nan") if differing is None else 100 * differing / (exported or {})["samples"],
    }


def _accuracies(runs: Mapping[str, Any], chance: float) -> str:
    rows = [
        (
            c.title,
            f"{100 * accuracy(runs[c.name]):.1f}",
            number(sum(e["seconds"] for e in runs[c.name]["history"]), ".0f"),
        )
        for c in CONTENDERS
    ]
    said = f"The most frequent class alone is right in {100 * chance:.1f} % of the test sequences. One seed."
    return f"{table(('model', 'test accuracy, %', 'seconds'), rows)}\n\n{said}"


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
