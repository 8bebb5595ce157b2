"""Artifacts of many shapes, exported once, which nobody may change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from exponents import normal
from made_once import export_checkpoint
from osa_runtime.exporters import export
from osa_runtime.models import EncoderConfig, SkiplessEncoder, save_checkpoint
from osa_runtime.nn import OrthogonalSelfAttention
from small_models import SIZES

Exported = Callable[[str, str], Path]
Artifacts = Callable[[str], Path]


class TwoOutputs(nn.Module):
    """Tokens, and one number per row; its mask is not called mask, so it is an input like any other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = OrthogonalSelfAttention(8, 2, alpha=0.3)

    def forward(self, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x, real)
        return y, y.sum((1, 2))


class Total(nn.Module):
    """An output without the batch axis: requests cannot be joined."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = OrthogonalSelfAttention(8, 2, alpha=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).sum(0)


def export_two_outputs(out: Path) -> None:
    axes = {"x": {0: "batch", 1: "length"}, "real": {0: "batch", 1: "length"}}
    example = (normal(2, 6, 8), torch.ones(2, 6, dtype=torch.bool))
    export(TwoOutputs(), example, out, dynamic_shapes=axes, output_names=["mixed", "total"])


def export_total(out: Path) -> None:
    export(Total(), (normal(2, 6, 8),), out, dynamic_shapes={"x": {0: "batch"}}, output_names=["total"])


def export_features(out: Path) -> None:
    config = EncoderConfig(classes=3, features=3, max_length=64, head="token", **SIZES)
    checkpoint = out.with_name("features-checkpoint")
    save_checkpoint(SkiplessEncoder(config), checkpoint)
    export_checkpoint(checkpoint, out)


@pytest.fixture(scope="session")
def artifacts(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    """``artifacts("fp16")`` is the folder of that model."""
    home = tmp_path_factory.mktemp("artifacts")
    own = {"two-outputs": export_two_outputs, "total": export_total, "features": export_features}
    options = {"fp16": {"dtype": "fp16"}, "static": {"static": True}, "external": {"external_data": True}}

    def folder(name: str) -> Path:
        if name in ("vit", "encoder"):
            return exported(name, "onnx")
        out = home / name
        if not out.exists():
            torch.manual_seed(0)
            if name in own:
                own[name](out)
            else:
                export_checkpoint(exported("vit", "onnx").parent / "vit", out, **options[name])
        return out

    return folder
