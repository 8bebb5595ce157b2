"""The training loop: optimizers, one epoch and its evaluation, without files and screens."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from osa_runtime.errors import ExponentRangeError, OsaError
from osa_runtime.models.config import BlockConfig
from osa_runtime.nn.initialisation import default_alpha
from osa_runtime.training.datasets import Dataset
from osa_runtime.training.sequences import SequenceDataset
from osa_runtime.training.settings import TrainingSettings

_EVALUATION_BATCH = 512


@dataclasses.dataclass(frozen=True)
class EpochRecord:
    """The figures of one epoch; the test figures are only reported, nothing is chosen by them.

    Those of validation are None if no images were held out for it.
    """

    epoch: int
    train_loss: float
    train_accuracy: float
    test_loss: float
    test_accuracy: float
    seconds: float
    validation_loss: float | None = None
    validation_accuracy: float | None = None


class Observer(Protocol):
    """A view of a run, such as a progress bar."""

    def begin(self, epochs: int, steps: int, finished: int) -> None: ...

    def step(self, epoch: int, loss: float, accuracy: float) -> None: ...

    def epoch(self, record: EpochRecord) -> None: ...


class Trainer:
    """A model with its optimizers and schedules; :meth:`run_epoch` may be called once per epoch, in order."""

    def __init__(
        self,
        model: nn.Module,
        data: Dataset | SequenceDataset,
        settings: TrainingSettings,
        validation: Dataset | SequenceDataset | None = None,
    ) -> None:
        self.model = model.to(settings.device)
        self.settings = settings
        self.train_set = _tensors((*data.train_inputs, data.y_train), settings.device)
        self.test_set = _tensors((*data.test_inputs, data.y_test), settings.device)
        self.validation_set = validation and _tensors((*validation.test_inputs, validation.y_test), settings.device)
        self.steps = math.ceil(len(data.y_train) / settings.batch_size)
        self.optimizers = make_optimizers(model, settings)
        # One more than there are batches: a schedule also steps after the last one.
        total = settings.epochs * self.steps + 1
        self.schedules = [
            torch.optim.lr_scheduler.OneCycleLR(
                optimizer, max_lr=[group["lr"] for group in optimizer.param_groups], total_steps=total
            )
            for optimizer in self.optimizers
        ]

    def run_epoch(self, epoch: int, observer: Observer) -> EpochRecord:
        started = time.perf_counter()
        self.model.train()
        average = _Average()
        for step, (*inputs, y) in enumerate(self._batches(epoch), start=1):
            logits, loss = self._step(inputs, y, (epoch, step))
            average.add(loss, logits, y)
            observer.step(epoch, average.loss, average.accuracy)
        test = self.evaluate(self.test_set)
        held_out = self.evaluate(self.validation_set) if self.validation_set else None
        seconds = time.perf_counter() - started
        figures = (average.loss, average.accuracy, test.loss, test.accuracy, seconds)
        return EpochRecord(epoch, *figures, *((held_out.loss, held_out.accuracy) if held_out else ()))

    @torch.no_grad()
    def evaluate(self, samples: tuple[Tensor, ...]) -> _Average:
        self.model.eval()
        average = _Average()
        for *inputs, y in zip(*(part.split(_EVALUATION_BATCH) for part in samples), strict=True):
            logits = self.model(*inputs)
            average.add(nn.functional.cross_entropy(logits, y).item(), logits, y)
        return average

    def _batches(self, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        """Shuffled by seed and epoch alone, so that a resumed run sees the order it would have seen."""
        y = self.train_set[-1]
        generator = torch.Generator().manual_seed((self.settings.seed * 1_000_003 + epoch) % 2**63)
        order = torch.randperm(len(y), generator=generator).to(y.device)
        for chosen in order.split(self.settings.batch_size):
            yield tuple(part[chosen] for part in self.train_set)

    def _step(self, inputs: Sequence[Tensor], y: Tensor, moment: tuple[int, int]) -> tuple[Tensor, float]:
        stopped = "Training stopped at epoch {}, step {}:".format(*moment)
        try:
            logits = self.model(*inputs)
        except ExponentRangeError as error:
            raise ExponentRangeError(f"{stopped} {error} {_remedy(self.settings, moment)}") from error
        loss = nn.functional.cross_entropy(logits, y)
        self.model.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        value = loss.item()
        if not (math.isfinite(value) and math.isfinite(float(norm))):
            raise OsaError(
                f"{stopped} the loss is {value} and its gradient's norm {float(norm)}. {_remedy(self.settings, moment)}"
            )
        for optimizer, schedule in zip(self.optimizers, self.schedules, strict=True):
            optimizer.step()
            schedule.step()
        return logits.detach(), value


@dataclasses.dataclass
class _Average:
    """Loss and accuracy over the images seen so far, in double precision."""

    total: float = 0.0
    correct: int = 0
    count: int = 0

    def add(self, loss: float, logits: Tensor, y: Tensor) -> None:
        self.total += loss * len(y)
        self.correct += int((logits.argmax(dim=1) == y).sum())
        self.count += len(y)

    @property
    def loss(self) -> float:
        return self.total / self.count

    @property
    def accuracy(self) -> float:
        return self.correct / self.count


def _tensors(arrays: Sequence[object], device: str) -> tuple[Tensor, ...]:
    return tuple(torch.as_tensor(array, device=device) for array in arrays)


def _remedy(settings: TrainingSettings, moment: tuple[int, int]) -> str:
    """At the first step no weight has changed yet, so the learning rate cannot be the cause."""
    slower = "" if moment == (1, 1) else f" and a rate below lr={settings.lr}, or"
    if settings.attention == "polynomial" and not (settings.norm and settings.residual):
        power = 2 * settings.power + 1
        return (
            f"Polynomial attention with power={settings.power} raises the norm of its tokens to the power {power} in "
            f"each layer, which no learning rate repairs: start anew with force=True{slower} with norm=True and "
            "residual=True, or with fewer layers."
        )
    if moment == (1, 1):
        return "It was the first step, so no learning rate repairs it: start anew with force=True and norm=True."
    return f"Start anew with force=True{slower} with norm=True or residual=True."


def make_optimizers(model: nn.Module, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    """AdamW for all parameters, or Muon for the matrices inside the blocks and AdamW for the rest.

    Muon makes the update of a matrix orthogonal. Its steps are scaled to the size of AdamW's, so that the same rates
    suit both; embedding, positions and classifier are not matrices between hidden features, and stay with AdamW.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    inner = [name for name, parameter in trained.items() if ".blocks." in name and parameter.ndim == 2]
    if settings.optimizer == "adamw" or not inner:
        return [_adamw(model, trained, settings)]
    assert settings.lr is not None, "settings must be resolved"
    muon = torch.optim.Muon(
        [trained[name] for name in inner],
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    return [muon, _adamw(model, {name: p for name, p in trained.items() if name not in inner}, settings)]


def _adamw(model: nn.Module, trained: Mapping[str, nn.Parameter], settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW that decays matrices only: shrinking a bias or the attention's scale regularises nothing."""
    assert settings.lr is not None, "settings must be resolved"
    scales = {name: p for name, p in trained.items() if name.endswith(".alpha")}
    rest = [p for name, p in trained.items() if name not in scales]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    if scales:
        share = alpha_share(model.config)  # type: ignore[arg-type]  # of a model with α
        groups.append({"params": list(scales.values()), "weight_decay": 0.0, "lr": share * settings.lr})
    return torch.optim.AdamW(groups, lr=settings.lr)


def alpha_share(config: BlockConfig) -> float:
    """The rate of α as a share of that of the other parameters, so that a step changes all by the same proportion.

    A step of AdamW changes every number by about the rate, whatever its size. Weights have the size 1/√dim, and α that
    of 0.2/N: at the same rate, a few steps would multiply ‖S‖. Behind a normalisation that is wanted: the size of the
    tokens is fixed there, so that ‖S‖ cannot grow with it, and such models learn better with one rate.
    """
    return 1.0 if config.norm else min(1.0, default_alpha(config.tokens) * config.dim**0.5)
