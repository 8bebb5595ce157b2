"""A model of three blocks, and its artifacts, made once per test process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from osa_runtime.exporters import export_checkpoint
from osa_runtime.models import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig, save_checkpoint

SIZES = {"dim": 16, "depth": 3, "heads": 2, "alpha": 0.3}


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("verified")


@pytest.fixture(scope="session")
def checkpoint(home: Path) -> Callable[[str], Path]:
    """``checkpoint("vit")``, ``("encoder")``, or ``("other")``: the first with other weights."""

    def make(name: str) -> Path:
        folder = home / name
        if not folder.exists():
            torch.manual_seed(1 if name == "other" else 0)
            if name == "encoder":
                config = EncoderConfig(classes=3, vocabulary=11, max_length=40, **SIZES)
                save_checkpoint(SkiplessEncoder(config), folder)
            else:
                save_checkpoint(SkiplessViT(ViTConfig(classes=10, **SIZES)), folder)
        return folder

    return make


@pytest.fixture(scope="session")
def deep(home: Path, checkpoint: Callable[[str], Path]) -> Callable[..., Path]:
    """``deep("vit", format="pt2")``: an artifact that nobody may change."""

    def make(name: str, **options: object) -> Path:
        folder = home / "-".join([name, "artifact", *(f"{key}={value}" for key, value in options.items())])
        if not folder.exists():
            export_checkpoint(checkpoint(name), folder, **options)
        return folder

    return make
