"""Digits of MNIST as sequences of their pixels, one by one: the empty ones are left out, so that lengths vary.

A token is (row, column, brightness). Of each image a random number of its pixels is kept, in reading order: the more
there are, the more of the digit is seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from osa_runtime.atomic import atomic_file
from osa_runtime.environment import require
from osa_runtime.evidence import deployment
from osa_runtime.evidence.claims import Claim
from osa_runtime.evidence.contenders import BLACK, OSA, SOFTMAX_SKIPLESS, SOFTMAX_SKIPS
from osa_runtime.evidence.report import Findings, Picture, number, table
from osa_runtime.evidence.runs import Bench
from osa_runtime.evidence.trained import accuracy, choose_rate, train_once
from osa_runtime.models import load_checkpoint
from osa_runtime.plotting import legend_below
from osa_runtime.training import SequenceDataset, load_dataset, load_sequences

CONTENDERS = (OSA, SOFTMAX_SKIPLESS, SOFTMAX_SKIPS)
PAPER = "arXiv 2602.05996"
FEWEST = 16  # pixels kept, where an image has as many
QUARTERS = ("shortest", "second", "third", "longest")


@dataclasses.dataclass(frozen=True)
class PixelsDesign:
    longest: int = 96
    train: int = 4000
    validation: int = 500
    test: int = 1000
    dim: int = 32
    heads: int = 4
    depth: int = 4
    epochs: int = 6
    batch_size: int = 32
    rates: tuple[float, ...] = (1e-3, 3e-3)
    seed: int = 0
    search_seed: int = 100


WHOLE = PixelsDesign()
QUICK = PixelsDesign(24, 60, 20, 30, 8, 2, 1, 1, 20, (1e-3,))


def claims(_: str) -> tuple[Claim, ...]:
    return (
        Claim(
            "OSA without skips is as accurate as softmax with them: difference, points",
            "osa_above_skips",
            at_least=-2.0,
            source=PAPER,
            in_quick=False,
        ),
        Claim("OSA is better than the most frequent class: points", "osa_above_chance", at_least=30.0, in_quick=False),
        Claim(
            "Length pays: OSA on the longest quarter of the sequences less the shortest, points",
            "longest_above_shortest",
            at_least=5.0,
            in_quick=False,
        ),
        *deployment.CLAIMS,
        deployment.SERVED,
    )


def run(bench: Bench) -> Findings:
    require("Serving what was trained", "uvicorn", "starlette", "orjson", extra="serve")
    design = QUICK if bench.quick else WHOLE
    data, validation = _sequences(bench, design)
    names = ("dim", "heads", "depth", "epochs", "batch_size")
    asked: dict[str, Any] = {name: getattr(design, name) for name in names}
    runs, rates, by_length = {}, {}, {}
    for contender in CONTENDERS:
        name, fields = contender.name, {**asked, **contender.fields}
        searched = {**fields, "seed": design.search_seed}
        rates[name], _ = choose_rate(bench, name, validation, searched, design.rates)
        runs[name] = train_once(bench, name, data, {**fields, "seed": design.seed, "lr": rates[name]})
        by_length[name] = _by_length(bench, name, data)
    trained = {name: accuracy(run) for name, run in runs.items()}
    deployed = deployment.deploy_all(bench, trained, data=_test_file(bench, data))
    served = deployment.serve_once(bench, OSA.name, data.x_test, data.mask_test)
    chance = float(np.bincount(data.y_test).max() / len(data.y_test))
    parts: list[str | Picture] = [
        "## Accuracy\n",
        _accuracies(runs, rates, by_length),
        _picture(runs, by_length, chance),
        _search_text(design),
        deployment.report(deployed),
        deployment.served_report(served),
    ]
    results = {"rates": rates, "runs": runs, "by_length": by_length, "exports": deployed, "served": served}
    measured = {**_measured(runs, by_length, chance), **deployment.measured(deployed), **served}
    return Findings(measured, parts, results, {**dataclasses.asdict(design), "data": "MNIST, pixel by pixel"})


def _sequences(bench: Bench, design: PixelsDesign) -> tuple[SequenceDataset, SequenceDataset]:
    """The training sequences with those for the test, and with others in their place."""
    path = bench.folder("pixels.npz")
    if not path.exists():
        mnist = load_dataset(bench.data, folder=bench.data_folder)
        chosen = np.random.RandomState(0).permutation(len(mnist.y_train))[: design.train + design.validation]
        arrays = {
            **sequences(mnist.x_train[chosen], design.longest, seed=1),
            "y": mnist.y_train[chosen],
            **sequences(mnist.x_test[: design.test], design.longest, seed=2, suffix="_test"),
            "y_test": mnist.y_test[: design.test],
        }
        with atomic_file(path) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, **arrays)
    data = load_sequences(path)
    parts = {name: getattr(data, name) for name in ("x_train", "y_train", "mask_train")}
    kept = dataclasses.replace(data, **{name: array[: design.train] for name, array in parts.items()})
    held_out: dict[str, Any] = {name.replace("train", "test"): array[design.train :] for name, array in parts.items()}
    return kept, dataclasses.replace(kept, **held_out)


def sequences(images: Any, longest: int, seed: int, suffix: str = "") -> dict[str, Any]:
    """``x`` and ``lengths`` of an .npz for ``osa train --model encoder``, from images (n, 1, height, width)."""
    random, side = np.random.RandomState(seed), images.shape[-1]
    x, lengths = np.zeros((len(images), longest, 3), np.float32), np.ones(len(images), np.int64)
    empty = images.min()
    for index, image in enumerate(images[:, 0]):
        rows, columns = np.nonzero(image > empty)
        most = min(longest, len(rows))
        count = random.randint(min(FEWEST, most), most + 1)
        kept = np.sort(random.permutation(len(rows))[:count])
        rows, columns, lengths[index] = rows[kept], columns[kept], max(1, count)
        # From -2 to 2, so that both places have about the variance of the brightness.
        x[index, :count] = np.stack([4 * rows / side - 2, 4 * columns / side - 2, image[rows, columns]], 1)
    return {f"x{suffix}": x, f"lengths{suffix}": lengths}


def _test_file(bench: Bench, data: SequenceDataset) -> Path:
    path = bench.folder("pixels-test.npz")
    np.savez(path, tokens=data.x_test, mask=data.mask_test, y=data.y_test)
    return path


def _by_length(bench: Bench, name: str, data: SequenceDataset) -> list[float]:
    """The test accuracy in % in quarters of the sequences, from the shortest to the longest; none if it diverged."""
    if not (bench.folder(name) / "checkpoint").exists():
        return []

    def measure() -> dict[str, Any]:
        model, found = load_checkpoint(bench.folder(name)), []
        with torch.no_grad():
            for rows in np.array_split(np.argsort(data.mask_test.sum(1), kind="stable"), len(QUARTERS)):
                logits = model(torch.from_numpy(data.x_test[rows]), torch.from_numpy(data.mask_test[rows]))
                found.append(100 * float(np.mean(logits.argmax(1).numpy() == data.y_test[rows])))
        return {"quarters": found}

    quarters: list[float] = bench.once(f"{name}-by-length", {"quarters": len(QUARTERS)}, measure)["quarters"]
    return quarters


def _measured(runs: Mapping[str, Any], by_length: Mapping[str, list[float]], chance: float) -> dict[str, float]:
    osa, quarters = 100 * accuracy(runs["osa"]), by_length["osa"]
    return {
        "osa_above_skips": osa - 100 * accuracy(runs["softmax-skips"]),
        "osa_above_chance": osa - 100 * chance,
        "longest_above_shortest": quarters[-1] - quarters[0] if quarters else float("nan"),
    }


def _search_text(design: PixelsDesign) -> str:
    rates = ", ".join(f"{rate:g}" for rate in design.rates)
    return (
        f"The rates {rates} were compared on {design.validation} other sequences, with a seed that is not used again, "
        "as long as in the runs. One seed for each."
    )


def _accuracies(runs: Mapping[str, Any], rates: Mapping[str, float], by_length: Mapping[str, list[float]]) -> str:
    rows = [
        (
            c.title,
            f"{rates[c.name]:g}",
            f"{100 * accuracy(runs[c.name]):.1f}",
            *(f"{value:.1f}" for value in by_length[c.name] or [float("nan")] * len(QUARTERS)),
            number(sum(e["seconds"] for e in runs[c.name]["history"]), ".0f"),
        )
        for c in CONTENDERS
    ]
    columns = ("model", "rate", "test accuracy, %", *(f"{quarter} quarter, %" for quarter in QUARTERS), "seconds")
    return table(columns, rows)


def _picture(runs: Mapping[str, Any], by_length: Mapping[str, list[float]], chance: float) -> Picture:
    def draw(figure: Any) -> None:
        history, quarters = figure.subplots(1, 2, sharey=True)
        for contender in CONTENDERS:
            found = [100 * epoch["test_accuracy"] for epoch in runs[contender.name]["history"]]
            style: dict[str, Any] = dict(color=contender.colour, marker="o", ms=4, lw=1.8, label=contender.title)
            history.plot(range(1, len(found) + 1), found, **style)
            quarters.plot(range(len(by_length[contender.name])), by_length[contender.name], **style)
        history.axhline(100 * chance, color=BLACK, lw=1, ls=":", label="the most frequent class")
        history.set(xlabel="epoch", ylabel="test accuracy, %")
        quarters.set_xticks(range(len(QUARTERS)), QUARTERS)
        quarters.set(xlabel="quarter of the sequences by length")
        legend_below(figure, history, 2)

    return Picture(
        "curves", "Test accuracy after each epoch, and at the end by the length of the sequence.", (9, 4.4), draw
    )
