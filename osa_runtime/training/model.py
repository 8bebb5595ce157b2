"""The model that settings and data describe, and what it has in training only: initialisation, corrections, dropout."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from osa_runtime.models import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig
from osa_runtime.nn.spectral_conditioning import condition_from_svd, fold_corrections
from osa_runtime.training.datasets import Dataset
from osa_runtime.training.sequences import SequenceDataset
from osa_runtime.training.settings import TrainingSettings

OF_A_BLOCK = (
    "attention", "power", "spectral_lambda", "residual", "norm", "depth", "dim", "heads", "slope", "alpha",
    "activation", "mlp_ratio",
)  # fmt: skip
Model = SkiplessViT | SkiplessEncoder
USUAL_DEVIATION = 0.02  # of the weights of a ViT


def model_config(data: Dataset | SequenceDataset, settings: TrainingSettings) -> ViTConfig | EncoderConfig:
    fields: dict[str, Any] = {name: getattr(settings, name) for name in OF_A_BLOCK}
    # A correction from the decomposition is folded into the weights at the end: the model itself has none.
    fields["conditioning"] = "none" if settings.conditioning == "svd" else settings.conditioning
    fields["classes"] = data.classes
    if isinstance(data, SequenceDataset):
        return EncoderConfig(vocabulary=data.vocabulary, features=data.features, max_length=data.max_length, **fields)
    patches: dict[str, Any] = {"patch_size": settings.patch_size, "pool": settings.pool}
    return ViTConfig(image_size=data.image_size, channels=data.channels, **patches, **fields)


def build_model(config: ViTConfig | EncoderConfig, settings: TrainingSettings) -> Model:
    """The model with its first weights, which depend on the seed that torch has."""
    model: Model = SkiplessViT(config) if isinstance(config, ViTConfig) else SkiplessEncoder(config)
    if settings.initialisation == "usual":
        initialise_usually(model)
    if settings.conditioning == "svd":
        condition_from_svd(model, settings.spectral_lambda)
    if settings.dropout:
        _drop_out(model, settings.dropout)
    return model


def finished(model: Model, settings: TrainingSettings) -> Model:
    """The model as it is saved. λI stays apart: a checkpoint records it, and adds it again when it is loaded."""
    if settings.conditioning == "svd":
        fold_corrections(model)
    return model.cpu().eval()


def initialise_usually(model: nn.Module) -> None:
    """The initialisation of an ordinary ViT: small normal weights, cut at two deviations, and no bias."""
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            nn.init.trunc_normal_(parameter, std=USUAL_DEVIATION, a=-2 * USUAL_DEVIATION, b=2 * USUAL_DEVIATION)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def _drop_out(model: Model, share: float) -> None:
    """Dropout behind each attention and each MLP, while the model trains; the saved model does not know of it."""

    def drop(module: nn.Module, _: Any, out: Tensor) -> Tensor:
        return nn.functional.dropout(out, share, module.training)

    for block in model.stack.blocks:
        block.attention.register_forward_hook(drop)  # type: ignore[union-attr]  # blocks are modules
        block.mlp.register_forward_hook(drop)  # type: ignore[union-attr]
