"""The same training with several seeds: a run for each, and a table of all."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from osa_runtime.atomic import atomic_file
from osa_runtime.errors import InputError
from osa_runtime.training.datasets import Dataset
from osa_runtime.training.loop import EpochRecord, Observer
from osa_runtime.training.run import TrainingResult, train_classifier
from osa_runtime.training.run_folder import RunFolder
from osa_runtime.training.sequences import SequenceDataset
from osa_runtime.training.settings import TrainingSettings

SUMMARY = "seeds.json"


@dataclasses.dataclass(frozen=True)
class SeedsResult:
    """The runs, in the order of their seeds."""

    runs: tuple[TrainingResult, ...]
    summary: Path

    @property
    def accuracies(self) -> tuple[float, ...]:
        return tuple(run.test_accuracy for run in self.runs)

    @property
    def mean(self) -> float:
        return statistics.mean(self.accuracies)

    @property
    def deviation(self) -> float:
        """Of a sample; 0 for a single seed."""
        return statistics.stdev(self.accuracies) if len(self.runs) > 1 else 0.0


def train_seeds(
    data: Dataset | SequenceDataset,
    settings: TrainingSettings,
    seeds: Sequence[int],
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    observer: Observer | None = None,
) -> SeedsResult:
    """Train with each seed into ``out``/seed-N, and write ``out``/seeds.json; finished runs are kept, unless forced."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise InputError(f"seeds={','.join(map(str, seeds))}: expected different whole numbers, as in 0,1,2.")
    home = Path(out)
    chosen = [dataclasses.replace(settings, seed=seed) for seed in seeds]
    runs = [_one(data, one, RunFolder(home / f"seed-{one.seed}"), force, observer) for one in chosen]
    result = SeedsResult(tuple(runs), home / SUMMARY)
    content = {
        "format": 1,
        "seeds": list(seeds),
        "test_accuracies": result.accuracies,
        "mean": result.mean,
        "deviation": result.deviation,
        "lowest": min(result.accuracies),
        "highest": max(result.accuracies),
    }
    with atomic_file(result.summary) as temporary:
        temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    return result


def _one(
    data: Dataset | SequenceDataset,
    settings: TrainingSettings,
    folder: RunFolder,
    force: bool,
    observer: Observer | None,
) -> TrainingResult:
    if force or folder.state.exists() or not folder.metrics.exists():
        return train_classifier(data, settings, folder.path, force=force, observer=observer)
    metrics = json.loads(folder.metrics.read_text(encoding="utf-8"))
    _check_same(folder, metrics, _resolved(settings, data).as_dict(), data)
    return TrainingResult(folder, settings, tuple(EpochRecord(**record) for record in metrics["epochs"]))


def _resolved(settings: TrainingSettings, data: Dataset | SequenceDataset) -> TrainingSettings:
    return settings.resolved(data.image_size, sequences=isinstance(data, SequenceDataset))


def _check_same(
    folder: RunFolder, metrics: dict[str, Any], asked: dict[str, Any], data: Dataset | SequenceDataset
) -> None:
    before = metrics["settings"]
    other = [name for name in asked if before.get(name) != asked[name]]
    if other or metrics["data"]["sha256"] != data.sha256:
        what = ", ".join(f"{name} was {before.get(name)} and is now {asked[name]}" for name in other) or "other data"
        raise InputError(
            f"{folder.path} holds a finished run with other settings ({what}); choose another folder, or train anew "
            "with force=True."
        )
