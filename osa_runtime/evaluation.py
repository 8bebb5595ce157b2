"""The accuracy of an artifact or a checkpoint on labelled data. ONNX artifacts need no torch."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from osa_runtime.arrays import read_arrays
from osa_runtime.artifact import MANIFEST_FILE
from osa_runtime.environment import missing_package
from osa_runtime.errors import DataError, InputError
from osa_runtime.interface import ANY_DTYPE, Interface, TensorSpec
from osa_runtime.parity.evaluation import Accuracy, Evaluation
from osa_runtime.pixels import Standardisation
from osa_runtime.recognition import CONFIG_FILE, checkpoint_folder
from osa_runtime.runtime.device import DeviceSettings
from osa_runtime.runtime.input_checks import Array
from osa_runtime.runtime.session import load
from osa_runtime.training.catalogue import KNOWN, find_known
from osa_runtime.training.datasets import load_test_images
from osa_runtime.training.npz import check_images, check_labels
from osa_runtime.training.sequences import Sequences, check_sequences

__all__ = ["Accuracy", "Evaluation", "evaluate"]


@dataclass(frozen=True)
class Classifier:
    """A model that returns logits; ``run`` takes and returns arrays by name."""

    name: str
    interface: Interface
    run: Callable[[Mapping[str, Array]], Mapping[str, Array]]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.interface.inputs

    def standardisation(self, name: str) -> Standardisation | None:
        return self.interface.pixels.get(name)

    def logits(self, feeds: Mapping[str, Array], rows: int) -> Array:
        outputs = self.run(feeds)
        name = "logits" if "logits" in outputs else next(iter(outputs)) if len(outputs) == 1 else None
        if name is None:
            raise InputError(f"{self.name} returns {', '.join(outputs)}, and it is not clear which of them are logits.")
        found = outputs[name]
        if found.ndim != 2 or len(found) != rows or found.shape[1] < 2:
            raise InputError(
                f"{self.name} returns {name} of shape {found.shape} for {rows} samples; expected a number for each of "
                f"at least two classes, ({rows}, classes)."
            )
        return found


@contextlib.contextmanager
def open_classifier(path: Path, where: DeviceSettings) -> Iterator[Classifier]:
    if path.is_dir() and not (path / MANIFEST_FILE).exists() and (checkpoint_folder(path) / CONFIG_FILE).exists():
        yield _checkpoint(path, where)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the device makes no difference to an accuracy
        session = load(path, where.device, threads=where.threads, allow_fallback=where.allow_fallback)
    with session:
        yield Classifier(str(path), session.interface, session.run)


def _checkpoint(path: Path, where: DeviceSettings) -> Classifier:
    try:
        import torch

        from osa_runtime.models.checkpoint import load_checkpoint, read_standardisation
    except ModuleNotFoundError as error:
        otherwise = ", or evaluate what was exported from it"
        raise missing_package(f"The checkpoint {path}", error.name, "export", otherwise) from error
    if where.device != "cpu":
        raise InputError(f"{path} is a checkpoint, which is evaluated on the cpu; leave the device {where.device} out.")
    model, recorded = load_checkpoint(path), read_standardisation(checkpoint_folder(path))
    interface = model.interface()

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        with torch.inference_mode():
            return {"logits": model(*(torch.from_numpy(feeds[spec.name]) for spec in interface.inputs)).numpy()}

    pixels = {interface.inputs[0].name: recorded} if recorded is not None else {}
    return Classifier(str(path), replace(interface, pixels=pixels), run)


LABELS = "y"
TRAINED_ON = {"x", "y", "lengths", "mask", "x_test", "y_test", "lengths_test", "mask_test"}  # by `osa train`
FORM = (
    "expected x with images (n, height, width) or (n, height, width, channels) as they were stored, or with sequences "
    "as `osa train --model encoder` takes them, or an array for each input of the model as it takes it, and y with a "
    "label from 0 on for each sample"
)


@dataclass(frozen=True)
class Samples:
    """Labelled ``images`` (n, height, width, channels) as they were stored, ``sequences``, or ``arrays`` by input.

    Vectors (n, N, features) may be images or sequences: the model decides.
    """

    name: str
    labels: Array
    images: Array | None = None
    sequences: Sequences | None = None
    arrays: Mapping[str, Array] | None = None
    classes: int | None = None  # if it is known that there are no more
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def sha256(self) -> str:
        digest = hashlib.sha256()
        arrays = [array for array in (self.images, *(self.arrays or {}).values()) if array is not None]
        if self.sequences is not None and self.images is None:
            arrays += [self.sequences.x, self.sequences.mask]
        for array in (self.labels, *arrays):
            digest.update(f"{array.shape}{array.dtype.str}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def limited(self, most: int | None) -> Samples:
        """At most this many samples, evenly spaced: a file may be sorted by class."""
        if most is None or most >= len(self):
            return self
        chosen = np.linspace(0, len(self) - 1, most).round().astype(np.int64)
        images = None if self.images is None else self.images[chosen]
        sequences = None if self.sequences is None else self.sequences[chosen]
        arrays = None if self.arrays is None else {name: array[chosen] for name, array in self.arrays.items()}
        return replace(self, labels=self.labels[chosen], images=images, sequences=sequences, arrays=arrays)

    def feeds(self, model: Classifier) -> dict[str, Array]:
        """The feeds of the model for all samples; an error if it takes something else."""
        if self.sequences is not None and (self.images is None or not _takes_images(model)):
            return _sequence_feeds(self.name, self.sequences, model)
        if self.images is not None:
            spec = _image_input(model)
            return {spec.name: _prepared(self.images, spec, model)}
        given = dict(self.arrays or {})
        real = model.interface.missing_mask(given)
        if real is not None:
            given[str(model.interface.mask)] = np.ones(real, bool)
        names = {spec.name for spec in model.inputs}
        if names != set(given):
            raise InputError(f"{self.name} holds {', '.join(given)}; {model.name} takes {', '.join(sorted(names))}.")
        return given


def read_samples(data: str | Path, folder: str | Path | None = None) -> Samples:
    """Read the test images of a known data set, or an .npz file."""
    if Path(data).suffix != ".npz":
        if str(data) not in KNOWN and Path(data).exists():
            raise InputError(f"{data} is not an .npz file, and not one of the data sets {', '.join(KNOWN)}.")
        known = find_known(str(data)).name
        images = load_test_images(known, folder)
        return Samples(known, images.y, images.x, classes=10)
    path = Path(data)
    content = read_arrays(path)
    if not isinstance(content, dict):
        raise InputError(f"{path} is a single array; {FORM}.")
    content.pop("class_names", None)
    if {"x_test", "y_test"} <= set(content):
        return _training_file(path, content, "_test")
    if LABELS not in content or len(content) < 2:
        raise InputError(f"{path} holds {', '.join(content) or 'nothing'}; {FORM}.")
    if "x" in content and set(content) <= TRAINED_ON:
        note = "all samples of the file: where the model was trained on them, the accuracy flatters it"
        return replace(_training_file(path, content, ""), notes=(note,))
    labels = content.pop(LABELS)
    for name, array in content.items():
        check_labels(labels, len(array) if array.ndim else -1, f"{path}: y", f"{path}: {name}")
    return Samples(path.name, labels.astype(np.int64), arrays=content)


def _training_file(path: Path, content: Mapping[str, Array], suffix: str) -> Samples:
    x, y = content[f"x{suffix}"], content[f"y{suffix}"]
    padded = {f"lengths{suffix}", f"mask{suffix}"} & set(content)
    sequences = images = None
    if x.ndim != 2 and not padded:
        images = check_images(x, y, f"{path}: x{suffix}", f"{path}: y{suffix}").x
    if padded or x.ndim == 2 or (x.ndim == 3 and x.dtype.kind == "f"):
        sequences = check_sequences(path, content, suffix)
    return Samples(path.name, y.astype(np.int64), images, sequences)


def _sequence_feeds(name: str, sequences: Sequences, model: Classifier) -> dict[str, Array]:
    masks = [spec for spec in model.inputs if spec.name == model.interface.mask]
    tokens, *others = [spec for spec in model.inputs if spec not in masks]
    x, mask = sequences.x, sequences.mask
    known = tokens.dtype != ANY_DTYPE
    if others or (known and (len(tokens.shape), np.dtype(tokens.dtype).kind) != (x.ndim, x.dtype.kind)):
        kind = "token ids (batch, tokens)" if x.ndim == 2 else f"vectors (batch, tokens, {x.shape[2]})"
        raise InputError(f"{model.name} takes {', '.join(map(str, model.inputs))}, but {name} holds {kind}.")
    if not masks and not mask.all():
        raise InputError(
            f"{model.name} takes no mask, but {name} holds sequences of {mask.sum(1).min()} to {mask.sum(1).max()} "
            "tokens; pass some of one length, without padding."
        )
    return {tokens.name: x.astype(tokens.dtype) if known else x} | {spec.name: mask for spec in masks}


def _takes_images(model: Classifier) -> bool:
    return len(model.inputs) == 1 and (len(model.inputs[0].shape) == 4 or model.inputs[0].dtype == ANY_DTYPE)


def _image_input(model: Classifier) -> TensorSpec:
    spec = model.inputs[0]
    if not _takes_images(model):
        takes = ", ".join(map(str, model.inputs))
        raise InputError(f"{model.name} takes {takes}, not images (batch, channels, height, width). For data {FORM}.")
    return spec


def _prepared(images: Array, spec: TensorSpec, model: Classifier) -> Array:
    shape = (images.shape[3], *images.shape[1:3])
    if spec.dtype != ANY_DTYPE and any(
        isinstance(a, int) and a != b for a, b in zip(spec.shape[1:], shape, strict=True)
    ):
        raise InputError(
            f"The images are {shape[1]}×{shape[2]} with {shape[0]} channels, but {model.name} takes {spec}."
        )
    recorded = model.standardisation(spec.name)
    if recorded is not None:
        if len(recorded.mean) not in (1, shape[0]):
            raise InputError(
                f"{model.name} records {len(recorded.mean)} means, but the images have {shape[0]} channels."
            )
        _check_range(images, recorded.pixels, model)
        images = recorded.standardise(images)
    kind = "float32" if spec.dtype == ANY_DTYPE else spec.dtype
    if np.dtype(kind).kind != "f" and not np.array_equal(images, images.astype(kind)):
        raise InputError(f"{model.name} takes {spec}, and images of the type {images.dtype} would be rounded.")
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2).astype(kind))


def _check_range(images: Array, pixels: tuple[float, float], model: Classifier) -> None:
    """Check the range: pixels of 0…255 for a model of 0…1 would have a wrong answer, without an error."""
    (low, high), least, most = pixels, float(images.min()), float(images.max())
    width = high - low
    if least < low - width or most > high + width or most - least < width / 20:
        raise InputError(
            f"The pixels go from {least:g} to {most:g}, but {model.name} was trained on {low:g} to {high:g}; "
            "pass them in these units."
        )


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
    they were stored, to which the recorded preprocessing is applied, or with sequences, whose lengths or mask say which
    tokens are real, and y with labels; x_test and y_test are preferred if they exist. A file may also hold an array for
    each input of the model, as it takes them, and y.
    """
    for name, value in (("batch_size", batch_size), ("limit", limit)):
        if value is not None and value < 1:
            raise InputError(f"{name}={value}: expected a whole number from 1 on.")
    where, size, tell = (
        DeviceSettings(device, threads, allow_fallback),
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
    path: Path, samples: Samples, where: DeviceSettings, size: int, tell: Progress
) -> tuple[Array, tuple[str, ...]]:
    """The class that the model assigns to each sample, and notes for the reader."""
    with open_classifier(path, where) as model:
        feeds, notes = samples.feeds(model), samples.notes
        unprepared = model.standardisation(model.inputs[0].name) is None
        if samples.images is not None and _takes_images(model) and unprepared:
            notes += (f"{model.name} records no preprocessing: the images were fed as they are",)
        fixed = [spec.shape[0] for spec in model.inputs if spec.shape and isinstance(spec.shape[0], int)]
        size, found = int(fixed[0]) if fixed else size, []
        for start in range(0, len(samples), size):
            tell(model.name, start, len(samples))
            portion = {name: array[start : start + size] for name, array in feeds.items()}
            logits = _run(model, portion, size if fixed else min(size, len(samples) - start))
            _check_classes(model, logits.shape[1], samples)
            answer = np.where(np.isfinite(logits).all(axis=1), logits.argmax(axis=1), NO_ANSWER)
            found.append(answer)
        tell(model.name, len(samples), len(samples))
    return np.concatenate(found), notes


def _run(model: Classifier, feeds: Mapping[str, Array], size: int) -> Array:
    """Run the model on batches of this size; the last row is repeated where there are fewer."""
    rows = len(next(iter(feeds.values())))
    if rows < size:
        feeds = {name: np.concatenate([x, np.repeat(x[-1:], size - rows, axis=0)]) for name, x in feeds.items()}
    return model.logits(feeds, size)[:rows]


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
