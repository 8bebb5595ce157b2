"""The experiments by name. Their modules are imported when they run, because they need torch."""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from types import ModuleType

from osa_runtime.errors import InputError


@dataclass(frozen=True)
class KnownExperiment:
    """``module`` holds CLAIMS and ``run``; ``time`` is that of a whole run on one core that is free."""

    name: str
    module: str
    question: str
    paper: str
    time: str
    data: str | None = None

    def load(self) -> ModuleType:
        return importlib.import_module(f"osa_runtime.evidence.{self.module}")


OSA, POLYNOMIAL, SPECTRAL = "arXiv 2602.05996", "arXiv 2410.18613", "arXiv 2603.07162"
RESIDUAL_FREE = "arXiv 2605.25880"

EXPERIMENTS = {
    known.name: known
    for known in (
        KnownExperiment(
            "propagation", "propagation", "Do tokens stay apart through 64 layers, before any training?", OSA, "10 s"
        ),
        KnownExperiment(
            "jacobian", "jacobian", "How well is the Jacobian conditioned?", f"{OSA}, {SPECTRAL}", "2 min", "digits"
        ),
        KnownExperiment(
            "polynomial", "polynomial", "How does the norm of attention grow with N?", POLYNOMIAL, "5 min", "digits"
        ),
        KnownExperiment(
            "mnist", "classification", "Is a skipless ViT with OSA as good as one with skips?", OSA, "80 min", "mnist"
        ),
        KnownExperiment(
            "fashion-mnist", "classification", "The same on articles of clothing.", OSA, "25 min", "fashion-mnist"
        ),
        KnownExperiment("depth", "depth", "How deep can a skipless model be and still train?", OSA, "25 min", "digits"),
        KnownExperiment("length", "length", "What does a training step cost, by the number of tokens?", OSA, "1 min"),
        KnownExperiment(
            "pixels", "pixels", "Are sequences of variable length learnt without skips?", OSA, "12 min", "mnist"
        ),
        KnownExperiment(
            "quantisation",
            "quantisation",
            "Do skipless models lose less with few bits?",
            RESIDUAL_FREE,
            "7 min",
            "mnist",
        ),
    )
}


def find_experiment(name: str) -> KnownExperiment:
    """The experiment called ``name``, or an error that lists the known ones and the nearest."""
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    nearest = difflib.get_close_matches(name.lower(), EXPERIMENTS, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else "."
    raise InputError(f"Unknown experiment {name!r}: known are {', '.join(EXPERIMENTS)}{hint}")
