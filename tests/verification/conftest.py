"""A model of three blocks, and its artifacts, made once per test process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from structures import Compare, comparing

from made_once import export_checkpoint
from osa_runtime.models import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig, save_checkpoint

SIZES = {"dim": 16, "depth": 3, "heads": 2, "alpha": 0.3}
SKIPS = {"residual": True, "norm": True}


@pytest.fixture(autouse=True)
def without_specialising(request: pytest.FixtureRequest) -> Iterator[None]:
    """TorchScript compiles a program for the shapes of its first calls, which takes half of a verification.

    What is wrong in an archive is wrong without that, too. Honest artifacts are run as users do.
    """
    if request.path.name == "test_honest.py":
        yield
        return
    usual = torch.jit.set_fusion_strategy([("DYNAMIC", 0)])
    yield
    torch.jit.set_fusion_strategy(usual)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("verified")


@pytest.fixture(scope="session")
def checkpoint(home: Path) -> Callable[[str], Path]:
    """``checkpoint("vit")``, ``("encoder")``, ``("normed")`` with skips and norms, so also ``("softmax")`` and
    ``("polynomial")``, or ``("other")``: other weights.

    Graphs of sequence models hold one form of the attention, as those of images do, and so load ten times faster; that
    of ``("branching")`` chooses between both, as it does by default.
    """

    def make(name: str) -> Path:
        folder = home / name
        if not folder.exists():
            torch.manual_seed(1 if name == "other" else 0)
            if name in ("encoder", "branching"):
                form = "auto" if name == "branching" else "dense"
                config = EncoderConfig(classes=3, vocabulary=11, max_length=40, form=form, **SIZES)
                save_checkpoint(SkiplessEncoder(config), folder)
            elif name in ("softmax", "polynomial"):
                config = EncoderConfig(classes=3, vocabulary=11, max_length=40, attention=name, **SKIPS, **SIZES)
                save_checkpoint(SkiplessEncoder(config), folder)
            elif name == "normed":
                config = EncoderConfig(classes=3, features=5, max_length=40, form="dense", **SKIPS, **SIZES)
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


@pytest.fixture(scope="session")
def compare(home: Path, checkpoint: Callable[[str], Path]) -> Compare:
    """``compare(artifact, "vit")``: its structure against that of the checkpoint's export."""
    return comparing(home, checkpoint)
