"""Small models, exported once per test process, and inputs for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from made_once import export_checkpoint
from osa_runtime.exporters import export
from osa_runtime.models import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig, load_checkpoint, save_checkpoint

SIZES = {"dim": 16, "depth": 1, "heads": 2, "alpha": 0.3}
FORMATS = ("onnx", "torchscript", "pt2")
MODELS = ("vit", "encoder")
CLASSES = ("cat", "dog", "ox")


def export_small(home: Path, model: str, kind: str) -> Path:
    folder, checkpoint = home / f"{model}-{kind}", home / model
    if not checkpoint.exists():
        torch.manual_seed(0)
        # One form of the attention: a graph that chooses between both takes ten times as long to export and to load.
        encoder = EncoderConfig(classes=3, vocabulary=11, max_length=64, form="dense", **SIZES)
        save_checkpoint(
            SkiplessViT(ViTConfig(classes=10, **SIZES)) if model == "vit" else SkiplessEncoder(encoder), checkpoint
        )
    if not folder.exists():
        export_checkpoint(checkpoint, folder, format=kind)
    return folder


def export_named(folder: Path) -> Path:
    """A classifier of four features, whose classes have names."""
    axes, examples = {"input": {0: "batch"}}, (torch.zeros(2, 4),)
    model = nn.Linear(4, 3)
    return export(model, examples, folder, dynamic_shapes=axes, output_names=["logits"], class_names=CLASSES).folder


def feeds(model: str, batch: int = 3, tokens: int = 5) -> dict[str, NDArray[np.generic]]:
    generator = np.random.default_rng(batch)
    if model == "vit":
        return {"images": generator.standard_normal((batch, 1, 8, 8)).astype(np.float32)}
    ids = generator.integers(0, 11, (batch, tokens))
    return {"tokens": ids, "mask": np.arange(tokens) < generator.integers(1, tokens + 1, (batch, 1))}


def eager(folder: Path, model: str, inputs: dict[str, NDArray[np.generic]]) -> NDArray[np.generic]:
    with torch.no_grad():
        return load_checkpoint(folder.parent / model)(*(torch.from_numpy(x) for x in inputs.values())).numpy()
