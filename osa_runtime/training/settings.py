"""Everything that decides the result of a training run, in one frozen and validated object."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from osa_runtime.environment import usable_cores
from osa_runtime.errors import ConfigError

# "svd" is the correction of nn.spectral_conditioning; "usual" are the first weights of an ordinary ViT.
CHOICES = {
    "conditioning": ("none", "spectral", "svd"),
    "initialisation": ("isometric", "usual"),
    "optimizer": ("adamw", "muon"),
}


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """The settings of one run; two runs with equal settings and data end with equal weights on one machine.

    What is left ``None`` gets a value that suits the model and the data by :meth:`resolved`. The fields of the model
    itself are checked by its own configuration.
    """

    attention: str = "osa"
    power: int = 3
    conditioning: str = "none"
    spectral_lambda: float = 1.0
    alpha: float | None = None
    residual: bool = False
    norm: bool = False
    activation: str = "leaky_relu"
    slope: float | None = None
    mlp_ratio: float = 2.0
    initialisation: str = "isometric"
    pool: str = "mean"
    depth: int = 8
    dim: int = 64
    heads: int = 4
    patch_size: int | None = None
    dropout: float = 0.0
    epochs: int = 20
    batch_size: int = 32
    optimizer: str | None = None
    lr: float | None = None
    weight_decay: float = 0.01
    clip: float = 1.0
    validation: float = 0.0
    patience: int | None = None
    seed: int = 0
    device: str = "cpu"
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("depth", "dim", "heads", "epochs", "batch_size"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "a whole number of 1 or more")
        _check("seed", self.seed, 0 <= self.seed < 2**63, "between 0 and 2**63 - 1")
        _check("weight_decay", self.weight_decay, _finite(self.weight_decay) and self.weight_decay >= 0, "0 or more")
        _check("clip", self.clip, _finite(self.clip) and self.clip > 0, "a number above 0")
        _check("lr", self.lr, self.lr is None or (_finite(self.lr) and self.lr > 0), "a number above 0, such as 1e-3")
        _check("patch_size", self.patch_size, self.patch_size is None or self.patch_size >= 1, "1 or more")
        _check("threads", self.threads, self.threads is None or self.threads >= 1, "1 or more")
        _check("dropout", self.dropout, 0 <= self.dropout < 1, "0 or more, and below 1")
        _check("validation", self.validation, 0 <= self.validation < 1, "a share of the training images below 1")
        _check("patience", self.patience, self.patience is None or self.patience >= 1, "a number of epochs from 1 on")
        if self.patience is not None and not self.validation:
            raise ConfigError(f"patience={self.patience} needs images to validate with: set validation=0.1 or so.")
        for name, choices in CHOICES.items():
            chosen = getattr(self, name)
            _check(name, chosen, chosen in choices or (chosen is None and name == "optimizer"), " or ".join(choices))
        _check("device", self.device, self.device in ("cpu", "cuda"), "cpu or cuda")

    def resolved(self, image_size: tuple[int, int], *, sequences: bool = False) -> TrainingSettings:
        """The same settings with every ``None`` replaced by what suits the depth and the data.

        Sequences have a token for each of ``image_size``, and no patches to choose.
        """
        if sequences and (self.patch_size not in (None, 1) or self.pool != "mean"):
            raise ConfigError("patch_size and pool are settings of models of images; leave them out for sequences.")
        if sequences:
            return dataclasses.replace(self, patch_size=1).resolved(image_size)
        from osa_runtime.nn.initialisation import default_slope  # here, because it imports torch

        patch = default_patch_size(image_size) if self.patch_size is None else self.patch_size
        work = self.batch_size * self.dim * (image_size[0] // patch) * (image_size[1] // patch)
        return dataclasses.replace(
            self,
            optimizer=default_optimizer(self) if self.optimizer is None else self.optimizer,
            lr=default_lr(self.depth) if self.lr is None else self.lr,
            slope=default_slope(self.depth) if self.slope is None else self.slope,
            patch_size=patch,
            threads=default_threads(work) if self.threads is None else self.threads,
        )

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def default_lr(depth: int) -> float:
    """Every layer of a skipless net passes its error on in full, so deep ones take smaller steps.

    Chosen on validation folds of the digits: 2e-3 diverged at depth 8, 1e-3 at depth 32.
    """
    return 1e-3 if depth <= 16 else 3e-4


def default_optimizer(settings: TrainingSettings) -> str:
    """Muon for skipless models with orthogonal attention up to depth 16, AdamW for all others.

    Chosen on validation folds of the digits; other models, and deeper ones, were not tried with Muon.
    """
    skipless = settings.attention == "osa" and not (settings.residual or settings.norm)
    return "muon" if skipless and settings.depth <= 16 else "adamw"


def default_threads(work: int) -> int:
    """One for small models, every core for others, by the size of an activation.

    Operations on small tensors gain nothing from a second thread, and lose much when another program has its core:
    each of them waits for the slower thread.
    """
    return 1 if work < 2**17 else usable_cores()


def default_patch_size(image_size: tuple[int, int]) -> int:
    """The smallest patch that divides the image and leaves 4 to 64 tokens; single pixels only as the last resort."""
    height, width = image_size
    divisors = [p for p in range(1, min(height, width) + 1) if height % p == 0 and width % p == 0]
    fitting = [p for p in divisors if 4 <= (height // p) * (width // p) <= 64]
    larger = [p for p in fitting if p > 1]
    if not fitting:
        raise ConfigError(
            f"No patch size cuts images of {height}×{width} pixels into 4 to 64 patches; choose one with patch_size=… "
            f"(it must divide both sides: {', '.join(map(str, divisors))}), or crop or pad the images."
        )
    return min(larger or fitting)


def _finite(value: float) -> bool:
    return math.isfinite(value)


def _check(name: str, value: object, valid: bool, expected: str) -> None:
    if not valid:
        raise ConfigError(f"{name} is {value}, expected {expected}.")
