"""Checkpoints: folders with ``config.json``, which describes the model, and ``model.safetensors``, its weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.atomic import atomic_folder
from osa_runtime.errors import CheckpointError, ConfigError, InputError
from osa_runtime.models.config import BlockConfig, EncoderConfig, ViTConfig
from osa_runtime.models.encoder import SkiplessEncoder
from osa_runtime.models.vit import SkiplessViT
from osa_runtime.nn.initialisation import without_values
from osa_runtime.pixels import Standardisation
from osa_runtime.recognition import CONFIG_FILE, WEIGHTS_FILE, checkpoint_folder, not_a_checkpoint

__all__ = [
    "CONFIG_FILE",
    "WEIGHTS_FILE",
    "checkpoint_folder",
    "load_checkpoint",
    "read_class_names",
    "read_description",
    "read_standardisation",
    "save_checkpoint",
]

VERSION = 1
PREPROCESSING, CLASS_NAMES = "preprocessing", "class_names"
MODELS: dict[str, tuple[type[BlockConfig], type[nn.Module]]] = {
    "SkiplessViT": (ViTConfig, SkiplessViT),
    "SkiplessEncoder": (EncoderConfig, SkiplessEncoder),
}


def save_checkpoint(
    model: SkiplessViT | SkiplessEncoder,
    folder: str | Path,
    *,
    standardisation: Standardisation | None = None,
    class_names: Sequence[str] = (),
    replace: bool = False,
) -> Path:
    """Write the model to ``folder``, in one step: half a checkpoint is never visible.

    ``standardisation`` was applied to the pixels of its training images; ``class_names`` are those of its logits.
    """
    from safetensors.torch import save

    name = type(model).__name__
    if name not in MODELS:
        raise InputError(
            f"A checkpoint holds one of {', '.join(MODELS)}, got {name}; save your own module's state_dict."
        )
    description: dict[str, Any] = {"version": VERSION, "model": name, "config": model.config.to_dict()}
    if standardisation is not None:
        description[PREPROCESSING] = standardisation.as_dict()
    if class_names:
        description[CLASS_NAMES] = list(class_names)
    weights = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    with atomic_folder(folder, replace=replace, marker=CONFIG_FILE) as temporary:
        (temporary / CONFIG_FILE).write_text(
            json.dumps(description, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        # Serialised by safetensors but written here: a full disk is then an OSError, which atomic_folder reports.
        (temporary / WEIGHTS_FILE).write_bytes(save(weights))
    return Path(folder)


def load_checkpoint(folder: str | Path) -> SkiplessViT | SkiplessEncoder:
    """Read a model from ``folder``, on the CPU and in evaluation mode, after checking version, names and shapes."""
    where = checkpoint_folder(folder)
    model_class, config = read_description(where)
    weights = _read_weights(where / WEIGHTS_FILE)
    _check_size(config, weights, where)
    try:
        with without_values():
            model = model_class(config)
    except ConfigError as error:
        raise CheckpointError(f"{where / CONFIG_FILE} does not describe a valid model: {error}") from error
    except (RuntimeError, MemoryError, TypeError) as error:
        # torch's allocator raises the first, and the last where a size is beyond 64 bits.
        raise CheckpointError(f"{where / CONFIG_FILE} describes a model that does not fit into memory.") from error
    _check_weights(model.state_dict(), weights, where)
    model.load_state_dict(weights)
    return model.eval()  # type: ignore[return-value]  # MODELS holds just these two


def read_description(where: Path) -> tuple[type[nn.Module], BlockConfig]:
    """Read the description of the model in the folder, without its weights."""
    description = _read_fields(where / CONFIG_FILE)
    config_class, model_class = MODELS[description["model"]]
    try:
        return model_class, config_class.from_dict(description["config"])
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{where / CONFIG_FILE} does not describe a valid model: {error}") from error


def read_standardisation(where: Path) -> Standardisation | None:
    """The standardisation of pixels in training; None if the checkpoint does not record it."""
    fields = _read_fields(where / CONFIG_FILE).get(PREPROCESSING)
    try:
        return None if fields is None else Standardisation.from_dict(fields)
    except ValueError as error:
        raise CheckpointError(f"{where / CONFIG_FILE}: {error}.") from error


def read_class_names(where: Path) -> tuple[str, ...]:
    """The names of the model's classes; empty if the checkpoint does not record them."""
    fields = _read_fields(where / CONFIG_FILE)
    names, classes = fields.get(CLASS_NAMES, []), fields["config"].get("classes")
    texts = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
    if not texts or len(set(names)) != len(names) or (names and len(names) != classes):
        raise CheckpointError(
            f"{where / CONFIG_FILE}: {CLASS_NAMES} must be {classes} distinct texts, one for each class."
        )
    return tuple(names)


def _check_size(config: BlockConfig, weights: dict[str, Tensor], where: Path) -> None:
    """Check the size before a model is built: each block has at least a square matrix of the width."""
    least, found = config.depth * config.dim**2, sum(value.numel() for value in weights.values())
    if least > found:
        raise CheckpointError(
            f"{where / CONFIG_FILE} does not fit {WEIGHTS_FILE}: depth={config.depth} and dim={config.dim} need more "
            f"than {least:,} numbers, but the file holds {found:,}. Restore both from the same copy."
        )


def _read_fields(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise not_a_checkpoint(path.parent)
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if isinstance(description, dict) and not {"version", "model", "config"} & set(description):
        raise not_a_checkpoint(path.parent)
    if not isinstance(description, dict) or not isinstance(description.get("config"), dict):
        raise CheckpointError(f"{path} must hold an object with version, model and config.")
    if description.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has version {description.get('version')!r}, this package reads {VERSION}; "
            "use the release that wrote it, or save it again."
        )
    if description.get("model") not in MODELS:
        raise CheckpointError(
            f"{path} names the model {description.get('model')!r}, expected one of {', '.join(MODELS)}."
        )
    return description


def _read_weights(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; copy it to the folder of {CONFIG_FILE}.") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} is damaged or not a safetensors file: {error}. Restore it from a copy."
        ) from error


def _check_weights(expected: dict[str, Tensor], found: dict[str, Tensor], folder: Path) -> None:
    """Name every difference between the model's parameters and the file's, a few of each kind."""
    differences = {
        "missing": [name for name in expected if name not in found],
        "unexpected": [name for name in found if name not in expected],
        "different shape": [
            f"{name} (file {tuple(found[name].shape)}, model {tuple(expected[name].shape)})"
            for name in expected
            if name in found and found[name].shape != expected[name].shape
        ],
    }
    parts = [f"{kind}: {_some(names)}" for kind, names in differences.items() if names]
    if parts:
        raise CheckpointError(f"The weights in {folder} do not fit its configuration ({'; '.join(parts)}).")
    broken = [name for name, value in found.items() if not bool(torch.isfinite(value).all())]
    if broken:
        raise CheckpointError(f"The weights in {folder} hold NaN or Inf: {_some(broken)}. The training run diverged.")


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
