"""One training run from settings and data to a finished folder, and its continuation after a kill."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from osa_runtime.errors import DataError, MissingDependencyError
from osa_runtime.models import EncoderConfig, ViTConfig, save_checkpoint
from osa_runtime.runtime.torch_session import torch_threads
from osa_runtime.training.datasets import Dataset
from osa_runtime.training.loop import EpochRecord, Observer, Trainer
from osa_runtime.training.model import build_model, finished, model_config
from osa_runtime.training.run_folder import RunFolder, damaged_state, draw_curve, load_state, save_state, write_metrics
from osa_runtime.training.sequences import SequenceDataset
from osa_runtime.training.settings import TrainingSettings

Data = Dataset | SequenceDataset


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """A finished run: its folder and the figures of every epoch."""

    folder: RunFolder
    settings: TrainingSettings
    history: tuple[EpochRecord, ...]

    @property
    def chosen(self) -> EpochRecord:
        """The epoch whose weights were saved."""
        return chosen_epoch(self.history, self.settings)

    @property
    def test_accuracy(self) -> float:
        """Of the chosen epoch, not of the best: choosing by the test set would flatter."""
        return self.chosen.test_accuracy

    @property
    def seconds(self) -> float:
        return sum(record.seconds for record in self.history)


def chosen_epoch(history: Sequence[EpochRecord], settings: TrainingSettings) -> EpochRecord:
    """The last epoch; with ``patience`` the one with the smallest loss on the held-out images."""
    if settings.patience is None:
        return history[-1]
    return min(history, key=lambda record: math.inf if record.validation_loss is None else record.validation_loss)


class _Silent:
    def begin(self, epochs: int, steps: int, finished: int) -> None: ...

    def step(self, epoch: int, loss: float, accuracy: float) -> None: ...

    def epoch(self, record: EpochRecord) -> None: ...


def train_classifier(
    data: Data,
    settings: TrainingSettings,
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    observer: Observer | None = None,
) -> TrainingResult:
    """Train a model on ``data`` into the folder ``out``, or continue a run that was killed there.

    Images are for a :class:`SkiplessViT`, sequences for a :class:`SkiplessEncoder`.
    """
    settings = settings.resolved(data.image_size, sequences=isinstance(data, SequenceDataset))
    folder = RunFolder(Path(out))
    _check_device(settings.device)
    config = model_config(data, settings)
    if not force:
        folder.refuse_finished()
    with _reproducible(settings):
        run = _Run(data, settings, config, folder)
        run.restart() if force or not folder.state.exists() else run.resume()
        run.train(observer or _Silent())
        return run.finish()


class _Run:
    """The moving parts of one run: the trainer, the history so far, and the folder."""

    def __init__(
        self,
        data: Data,
        settings: TrainingSettings,
        config: ViTConfig | EncoderConfig,
        folder: RunFolder,
    ) -> None:
        self.data, self.settings, self.folder = data, settings, folder
        self.identity = {**settings.as_dict(), "data": data.name, "data_sha256": data.sha256}
        self.model = build_model(config, settings)
        kept, validation = hold_out(data, settings.validation)
        self.trainer = Trainer(self.model, kept, settings, validation)
        self.history: list[EpochRecord] = []
        self.best: dict[str, Any] = {}  # the weights of the chosen epoch, with patience

    def restart(self) -> None:
        """Write the state of epoch 0 first: an unwritable folder should show before training, not after."""
        self._save()
        self.folder.remove_results()

    def resume(self) -> None:
        state = load_state(self.folder.state, self.identity)
        try:
            self.model.load_state_dict(state["model"])
            for name in ("optimizers", "schedules"):
                for part, content in zip(getattr(self.trainer, name), state[name], strict=True):
                    part.load_state_dict(content)
            self.history = [EpochRecord(**record) for record in state["history"]]
            self.best = state["best"]
            _set_random_state(state["random"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise damaged_state(self.folder.state, "it does not fit the model") from error

    def train(self, observer: Observer) -> None:
        observer.begin(self.settings.epochs, self.trainer.steps, len(self.history))
        for epoch in range(len(self.history) + 1, self.settings.epochs + 1):
            if self._has_waited():
                return
            record = self.trainer.run_epoch(epoch, observer)
            self.history.append(record)
            if self.settings.patience is not None and chosen_epoch(self.history, self.settings) is record:
                self.best = {name: value.clone() for name, value in self.model.state_dict().items()}
            self._save()
            observer.epoch(record)

    def _has_waited(self) -> bool:
        """True if the validation loss has not become smaller for ``patience`` epochs."""
        if self.settings.patience is None or not self.history:
            return False
        return self.history[-1].epoch - chosen_epoch(self.history, self.settings).epoch >= self.settings.patience

    def finish(self) -> TrainingResult:
        """Write the results; the state goes last, so that a kill in between only repeats this."""
        result = TrainingResult(self.folder, self.settings, tuple(self.history))
        if self.best:
            self.model.load_state_dict(self.best)
        save_checkpoint(
            finished(self.model, self.settings),
            self.folder.checkpoint,
            standardisation=self.data.standardisation,
            class_names=self.data.class_names,
            replace=True,
        )
        draw_curve(result.history, self._title(), self.folder.curve)
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        write_metrics(self.folder.metrics, self.settings, self.data, result.history, result.chosen, parameters)
        self.folder.remove_state()
        return result

    def _save(self) -> None:
        content = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.trainer.optimizers],
            "schedules": [schedule.state_dict() for schedule in self.trainer.schedules],
            "history": [dataclasses.asdict(record) for record in self.history],
            "best": self.best,
            "random": _random_state(),
        }
        save_state(self.folder.state, self.identity, content)

    def _title(self) -> str:
        settings = self.settings
        extras = [name for name, on in (("skips", settings.residual), ("norm", settings.norm)) if on]
        design = " + ".join([settings.attention, *extras]) if extras else f"{settings.attention}, skipless, no norm"
        return f"{self.data.name} · {design} · depth {settings.depth} · seed {settings.seed}"


def hold_out(
    data: Dataset | SequenceDataset, share: float
) -> tuple[Dataset | SequenceDataset, Dataset | SequenceDataset | None]:
    """The data without a share of its training samples, and these as the test samples of a second one.

    The same samples for every seed, so that seeds can be compared.
    """
    if not share:
        return data, None
    count = len(data.y_train)
    order = np.random.RandomState(1).permutation(count)
    held_out = max(1, round(share * count))
    if held_out >= count:
        raise DataError(f"validation={share:g} leaves none of the {count} training samples to train on.")
    arrays: dict[str, Any] = {
        f.name: getattr(data, f.name) for f in dataclasses.fields(data) if f.name.endswith("_train")
    }
    kept = dataclasses.replace(data, **{name: array[order[held_out:]] for name, array in arrays.items()})
    tests = {name.replace("_train", "_test"): array[order[:held_out]] for name, array in arrays.items()}
    return kept, dataclasses.replace(kept, **tests)


def _check_device(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise MissingDependencyError(
            f"device='cuda' was asked for, but PyTorch {torch.__version__} finds no CUDA device; use device='cpu', "
            "or a machine with an NVIDIA GPU and a CUDA build of PyTorch."
        )


@contextlib.contextmanager
def _reproducible(settings: TrainingSettings) -> Iterator[None]:
    """Seed torch, fix its threads and ask for deterministic kernels; afterwards all is as the caller had it."""
    # cuBLAS reads this once, when it starts; without it its sums may differ from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    mode = torch.get_deterministic_debug_mode()
    before = _random_state()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(settings.seed)
    try:
        with torch_threads(settings.threads):
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        _set_random_state(before)


def _random_state() -> dict[str, Any]:
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
