"""``evaluate``: accuracy on labelled data, and the disagreements of two models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from osa_runtime.errors import DataError, InputError
from osa_runtime.evaluation.classifiers import Classifier, Samples, open_classifier, read_samples
from osa_runtime.parity.evaluation import Accuracy, Evaluation
from osa_runtime.runtime.device import DeviceOptions
from osa_runtime.runtime.input_checks import Array

Progress = Callable[[str, int, int], None]  # the model, samples done, all samples

BATCH_SIZE = 64
NO_ANSWER = -1


def evaluate(
    artifact: str | Path,
    data: str | Path,
    against: str | Path | None = None,
    *,
    batch_size: int | None = None,
    limit: int | None = None,
    device: str = "cpu",
    threads: int | None = None,
    allow_fallback: bool = False,
    data_folder: str | Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure the accuracy of an artifact, a model file or a checkpoint on ``data``, and of ``against`` on the same.

    ``data`` is digits, mnist or fashion-mnist, of which the test images are taken, or an .npz file: x with images as
    they were stored, to which the recorded preprocessing is applied, and y with labels; x_test and y_test are
    preferred if they exist. A file may also hold an array for each input of the model, as it takes them, and y.
    """
    for name, value in (("batch_size", batch_size), ("limit", limit)):
        if value is not None and value < 1:
            raise InputError(f"{name}={value}: expected a whole number from 1 on.")
    where, size, tell = (
        DeviceOptions(device, threads, allow_fallback),
        batch_size or BATCH_SIZE,
        progress or (lambda *_: None),
    )
    samples = read_samples(data, data_folder).limited(limit)
    mine, notes = _answers(Path(artifact), samples, where, size, tell)
    first = Evaluation(samples.name, samples.sha256(), _accuracy(str(artifact), samples, mine), notes=notes)
    if against is None:
        return first
    theirs, more = _answers(Path(against), samples, where, size, tell)
    right, also = mine == samples.labels, theirs == samples.labels
    return replace(
        first,
        against=_accuracy(str(against), samples, theirs),
        differ=int((mine != theirs).sum()),
        gained=int((right & ~also).sum()),
        lost=int((also & ~right).sum()),
        notes=tuple(dict.fromkeys((*notes, *more))),
    )


def _answers(
    path: Path, samples: Samples, where: DeviceOptions, size: int, tell: Progress
) -> tuple[Array, tuple[str, ...]]:
    """The class that the model gives each sample, and what a reader should know."""
    with open_classifier(path, where) as model:
        feeds, notes = samples.feeds(model), samples.notes
        if samples.images is not None and model.standardisation(model.inputs[0].name) is None:
            notes += (f"{model.name} records no preprocessing: the images were fed as they are",)
        size = _batch_size(model, size)
        found = []
        for start in range(0, len(samples), size):
            tell(model.name, start, len(samples))
            logits = _run(model, {name: array[start : start + size] for name, array in feeds.items()}, size)
            _check_classes(model, logits.shape[1], samples)
            answer = np.where(np.isfinite(logits).all(axis=1), logits.argmax(axis=1), NO_ANSWER)
            found.append(answer)
        tell(model.name, len(samples), len(samples))
    return np.concatenate(found), notes


def _batch_size(model: Classifier, wanted: int) -> int:
    fixed = [spec.shape[0] for spec in model.inputs if spec.shape and isinstance(spec.shape[0], int)]
    return int(fixed[0]) if fixed else wanted


def _run(model: Classifier, feeds: Mapping[str, Array], size: int) -> Array:
    """Run the model; the last rows are repeated if it takes batches of one size only."""
    rows = len(next(iter(feeds.values())))
    fixed = any(spec.shape and isinstance(spec.shape[0], int) for spec in model.inputs)
    if fixed and rows < size:
        feeds = {name: np.concatenate([x, np.repeat(x[-1:], size - rows, axis=0)]) for name, x in feeds.items()}
        return model.logits(feeds, size)[:rows]
    return model.logits(feeds, rows)


def _check_classes(model: Classifier, classes: int, samples: Samples) -> None:
    largest = int(samples.labels.max())
    if largest >= classes or (samples.classes is not None and samples.classes != classes):
        has = f"{samples.classes} classes" if samples.classes is not None else f"labels up to {largest}"
        raise DataError(f"{model.name} has {classes} classes, but {samples.name} has {has}; pass data of its classes.")


def _accuracy(name: str, samples: Samples, answers: Array) -> Accuracy:
    labels, right = samples.labels, answers == samples.labels
    counts = np.stack([np.bincount(labels), np.bincount(labels[right], minlength=int(labels.max()) + 1)], axis=1)
    by_class = tuple((int(n), int(correct)) for n, correct in counts)
    return Accuracy(name, len(labels), int(right.sum()), int((answers == NO_ANSWER).sum()), by_class)
