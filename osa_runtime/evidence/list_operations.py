"""ListOps (Nangia & Bowman, 2018), made on the spot: nested lists of digits whose value, a digit, is the class.

    [MAX 4 [MIN 7 2 ] 3 ]  →  4

Its value depends on the whole of the sequence, so that a model must look far.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from osa_runtime.atomic import atomic_file
from osa_runtime.evidence import deployment
from osa_runtime.evidence.claims import Claim
from osa_runtime.evidence.contenders import BLACK, OSA, SOFTMAX_SKIPLESS, SOFTMAX_SKIPS
from osa_runtime.evidence.report import Findings, Picture, number, table
from osa_runtime.evidence.runs import Bench
from osa_runtime.evidence.trained import accuracy, choose_rate, train_once
from osa_runtime.plotting import legend_below
from osa_runtime.training import SequenceDataset, load_sequences

CONTENDERS = (OSA, SOFTMAX_SKIPLESS, SOFTMAX_SKIPS)
PAPER = "arXiv 2602.05996"
OPERATIONS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MAX": max,
    "[MIN": min,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
CLOSE = "]"
TOKENS = (*map(str, range(10)), *OPERATIONS, CLOSE)
MOST_ARGUMENTS, DEEPEST = 8, 6


def value_of(tokens: Sequence[str]) -> int:
    """The value of an expression, by a stack."""
    stack: list[list[int]] = [[]]
    operations: list[str] = []
    for token in tokens:
        if token in OPERATIONS:
            operations.append(token)
            stack.append([])
        elif token == CLOSE:
            values = stack.pop()
            stack[-1].append(OPERATIONS[operations.pop()](values))
        else:
            stack[-1].append(int(token))
    return stack[0][0]


def expression(length: int, generator: random.Random, depth: int = DEEPEST) -> list[str]:
    """An expression of about, and at most, ``length`` tokens; a list has at least one argument."""
    if length < 3 or depth == 0:
        return [str(generator.randrange(10))]
    inside, left = [generator.choice(list(OPERATIONS))], length - 2
    arguments = generator.randint(2, MOST_ARGUMENTS)
    while left > 0:
        part = expression(min(left, max(1, (length - 2) // arguments)), generator, depth - 1)
        inside += part
        left -= len(part)
    return [*inside, CLOSE]


def write_list_operations(path: Path, train: int, test: int, longest: int, seed: int = 0) -> None:
    """An .npz for ``osa train --model encoder``, with sequences from a quarter of ``longest`` to ``longest``."""
    generator = random.Random(seed)
    arrays: dict[str, Any] = {}
    for suffix, count in (("", train), ("_test", test)):
        made = [expression(generator.randint(max(3, longest // 4), longest), generator) for _ in range(count)]
        x = np.zeros((count, longest), np.int64)
        for row, tokens in enumerate(made):
            x[row, : len(tokens)] = [TOKENS.index(token) for token in tokens]
        arrays |= {f"x{suffix}": x, f"y{suffix}": np.array([value_of(tokens) for tokens in made])}
        arrays[f"lengths{suffix}"] = np.array([len(tokens) for tokens in made])
    with atomic_file(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)


@dataclasses.dataclass(frozen=True)
class ListOperationsDesign:
    longest: int = 64
    train: int = 8000
    validation: int = 1000
    test: int = 2000
    dim: int = 32
    heads: int = 4
    depth: int = 4
    epochs: int = 3
    batch_size: int = 16
    rates: tuple[float, ...] = (1e-3, 3e-3)
    search_seed: int = 100


WHOLE = ListOperationsDesign()
QUICK = ListOperationsDesign(24, 60, 20, 30, 8, 2, 1, 1, 20, (1e-3,))


def claims(_: str) -> tuple[Claim, ...]:
    return (
        Claim(
            "OSA without skips is as accurate as softmax with them: difference, points",
            "osa_above_skips",
            at_least=-2.0,
            source=PAPER,
            in_quick=False,
        ),
        Claim("OSA is better than the most frequent class: points", "osa_above_chance", at_least=5.0, in_quick=False),
        *deployment.CLAIMS,
    )


def run(bench: Bench) -> Findings:
    design = QUICK if bench.quick else WHOLE
    data, validation = _sequences(bench, design)
    names = ("dim", "heads", "depth", "epochs", "batch_size")
    asked: dict[str, Any] = {name: getattr(design, name) for name in names}
    runs, rates, deployed, test = {}, {}, [], _test_file(bench, data)
    for contender in CONTENDERS:
        name, fields = contender.name, {**asked, **contender.fields}
        searched = {**fields, "seed": design.search_seed}
        rates[name], _ = choose_rate(bench, name, validation, searched, design.rates)
        runs[name] = train_once(bench, name, data, {**fields, "lr": rates[name]})
        form: dict[str, Any] = {"form": "lowrank"} if contender is OSA else {}
        deployed += deployment.deploy_once(bench, name, accuracy(runs[name]), data=test, verified=True, **form)
    chance = float(np.bincount(data.y_test).max() / len(data.y_test))
    parts: list[str | Picture] = [
        "## Accuracy\n",
        _accuracies(runs, rates, chance),
        _picture(runs, chance),
        _search_text(design),
        deployment.report(deployed),
    ]
    results = {"rates": rates, "runs": runs, "exports": deployed, "most_frequent_class": chance}
    setting = {**dataclasses.asdict(design), "data": "ListOps, a quarter of the longest to the longest"}
    return Findings(_measured(runs, chance) | deployment.measured(deployed), parts, results, setting)


def _sequences(bench: Bench, design: ListOperationsDesign) -> tuple[SequenceDataset, SequenceDataset]:
    """The training sequences with those for the test, and with others in their place."""
    path = bench.folder("list-operations.npz")
    if not path.exists():
        write_list_operations(path, design.train, design.validation + design.test, design.longest)
    data = load_sequences(path)

    def testing_with(part: slice) -> SequenceDataset:
        arrays: dict[str, Any] = {name: getattr(data, name)[part] for name in ("x_test", "mask_test", "y_test")}
        return dataclasses.replace(data, **arrays)

    return testing_with(slice(design.validation, None)), testing_with(slice(design.validation))


def _test_file(bench: Bench, data: SequenceDataset) -> Path:
    path = bench.folder("list-operations-test.npz")
    np.savez(path, tokens=data.x_test, mask=data.mask_test, y=data.y_test)
    return path


def _measured(runs: Mapping[str, Any], chance: float) -> dict[str, float]:
    osa = 100 * accuracy(runs["osa"])
    return {
        "osa_above_skips": osa - 100 * accuracy(runs["softmax-skips"]),
        "osa_above_chance": osa - 100 * chance,
    }


def _search_text(design: ListOperationsDesign) -> str:
    rates = " and ".join(f"{rate:g}" for rate in design.rates)
    return (
        f"The rates {rates} were compared on {design.validation} other sequences, with a seed that is not used again, "
        "as long as in the runs."
    )


def _accuracies(runs: Mapping[str, Any], rates: Mapping[str, float], chance: float) -> str:
    rows = [
        (
            c.title,
            f"{rates[c.name]:g}",
            f"{100 * accuracy(runs[c.name]):.1f}",
            number(sum(e["seconds"] for e in runs[c.name]["history"]), ".0f"),
        )
        for c in CONTENDERS
    ]
    said = f"The most frequent class alone is right in {100 * chance:.1f} % of the test sequences. One seed."
    return f"{table(('model', 'rate', 'test accuracy, %', 'seconds'), rows)}\n\n{said}"


def _picture(runs: Mapping[str, Any], chance: float) -> Picture:
    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for contender in CONTENDERS:
            found = [100 * epoch["test_accuracy"] for epoch in runs[contender.name]["history"]]
            style: dict[str, Any] = dict(color=contender.colour, marker="o", ms=4, lw=1.8, label=contender.title)
            axes.plot(range(1, len(found) + 1), found, **style)
        axes.axhline(100 * chance, color=BLACK, lw=1, ls=":", label="the most frequent class")
        axes.set(xlabel="epoch", ylabel="test accuracy, %")
        legend_below(figure, axes, 2)

    return Picture("curves", "Test accuracy after each epoch.", (7, 4), draw)
