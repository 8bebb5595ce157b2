"""Training runs of an experiment, each resumed where it was killed, and the data and rates that they train with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from osa_runtime.errors import ExponentRangeError, OsaError
from osa_runtime.evidence.runs import Bench
from osa_runtime.training import Dataset, SequenceDataset, TrainingSettings, load_dataset, train_classifier
from osa_runtime.training.run_folder import RunFolder

SHARED: Mapping[str, Any] = {"threads": 1, "optimizer": "adamw"}  # of all models, whatever suits one of them best


def train_once(bench: Bench, name: str, data: Dataset | SequenceDataset, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The history of a run; a run that diverged is a result, too, and ``stopped`` says why."""

    def make() -> dict[str, Any]:
        folder = RunFolder(bench.folder(name))
        if folder.metrics.exists() and not folder.state.exists():  # killed between the run's end and this file
            metrics = json.loads(folder.metrics.read_text(encoding="utf-8"))
            return {"history": metrics["epochs"], "parameters": metrics["parameters"]}
        try:
            done = train_classifier(data, TrainingSettings(**{**SHARED, **fields}), folder.path)
        except OsaError as error:
            if type(error) not in (OsaError, ExponentRangeError):  # those of training itself
                raise
            return {"history": [], "stopped": str(error)}
        metrics = json.loads(folder.metrics.read_text(encoding="utf-8"))
        return {"history": [dataclasses.asdict(epoch) for epoch in done.history], "parameters": metrics["parameters"]}

    return bench.once(name, {**fields, "data": data.name, "data_sha256": data.sha256}, make)


def accuracy(run: Mapping[str, Any]) -> float:
    """Of the last epoch; 0 for a run that diverged."""
    return float(run["history"][-1]["test_accuracy"]) if run["history"] else 0.0


def choose_rate(
    bench: Bench, name: str, data: Dataset | SequenceDataset, fields: Mapping[str, Any], rates: Sequence[float]
) -> tuple[float, dict[str, float]]:
    """The rate with the best accuracy on ``data``, whose test samples are for validation; and all accuracies."""
    found = {rate: accuracy(train_once(bench, f"{name}-rate-{rate:g}", data, {**fields, "lr": rate})) for rate in rates}
    return max(found, key=lambda rate: found[rate]), {f"{rate:g}": value for rate, value in found.items()}


def training_and_validation(bench: Bench, images: int, validation: int) -> tuple[Dataset, Dataset]:
    """Some training images with the whole test set, and the same with other training images in place of the test set.

    The same images for every seed. They are standardised with the mean and deviation of all training images.
    """
    whole = load_dataset(bench.data, folder=bench.data_folder)
    order = np.random.RandomState(0).permutation(len(whole.y_train))
    chosen, held_out = order[:images], order[images : images + validation]
    part = dataclasses.replace(
        whole,
        name=f"{whole.name}, {len(chosen)} training images",
        x_train=whole.x_train[chosen],
        y_train=whole.y_train[chosen],
    )
    name = f"{part.name}, {len(held_out)} for validation"
    held_out_images: dict[str, Any] = dict(x_test=whole.x_train[held_out], y_test=whole.y_train[held_out])
    return part, dataclasses.replace(part, name=name, **held_out_images)
