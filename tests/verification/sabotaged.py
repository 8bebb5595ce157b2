"""Artifacts that were broken on purpose, how they are verified, and what the verdict says of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from made_once import export_checkpoint
from osa_runtime.models import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig, save_checkpoint
from osa_runtime.parity.certificate import Certificate
from osa_runtime.pixels import Standardisation
from osa_runtime.quantization import quantize
from osa_runtime.verification import VerifySettings, verify

SIZES: dict[str, Any] = {"dim": 8, "depth": 2, "heads": 2, "alpha": 0.5}
NORMED = {"residual": True, "norm": True}
BLOCK, EMBEDDED = "stack.blocks.1", "embed → stack.blocks.0.attention"
Breaking = Callable[[Path, Path], Path]


class Bases:
    """Checkpoints and honest artifacts, each made once."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def checkpoint(self, name: str) -> Path:
        folder = self.home / name
        if not folder.exists():
            torch.manual_seed({"other": 1}.get(name, 0))
            model = _model(name)
            with torch.no_grad():
                for parameter_name, parameter in model.named_parameters():
                    if parameter_name.endswith("bias"):
                        parameter.normal_(0.0, 0.3)
            pixels = Standardisation((0.3,), (0.3,), (0.0, 1.0)) if isinstance(model, SkiplessViT) else None
            save_checkpoint(model, folder, standardisation=pixels)
        return folder

    def artifact(self, name: str, **options: Any) -> Path:
        folder = self.home / "-".join([name, "artifact", *map(str, options.values())])
        if not folder.exists() and options.get("format") == "int8":
            quantize(self.artifact(name), folder)
        elif not folder.exists() and options.get("format") == "int8, dynamic":
            quantize(self.artifact(name), folder, activations="dynamic")
        elif not folder.exists() and options.get("format") == "int8, static":
            images = np.random.default_rng(0).normal(size=(64, 1, 8, 8)).astype(np.float32)
            np.savez(self.home / "examples.npz", images=images)
            quantize(self.artifact(name), folder, activations="static", calibration=self.home / "examples.npz")
        elif not folder.exists():
            export_checkpoint(self.checkpoint(name), folder, **options)
        return folder


def _model(name: str) -> SkiplessViT | SkiplessEncoder:
    if name in ("vit", "other"):
        return SkiplessViT(ViTConfig(classes=10, slope=0.5, **SIZES))
    if name == "normed":
        return SkiplessEncoder(EncoderConfig(classes=3, features=5, max_length=40, form="dense", **NORMED, **SIZES))
    longest, form = {"words": (40, "dense"), "long": (600, "auto")}[name]
    return SkiplessEncoder(EncoderConfig(classes=3, vocabulary=11, max_length=longest, form=form, **SIZES))


@dataclass(frozen=True)
class Sabotage:
    """``part`` is what must be named (a pattern): a part of the model, a weight, or a field of the manifest."""

    fault: str
    base: str
    breaking: Breaking
    part: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def format(self) -> str:
        kind = str(self.options.get("format", "onnx"))
        return f"{kind}, inlined" if self.options.get("functions") == "inline" else kind

    def names(self, text: str) -> bool:
        return re.search(self.part, text) is not None

    def judged(self, bases: Bases, out: Path) -> Certificate:
        """Verify like a user, without the grid of sizes and magnitudes, which takes longer."""
        artifact = self.breaking(bases.artifact(self.base, **self.options), out)
        return verify(artifact, bases.checkpoint(self.base), VerifySettings(quick=True)).certificate


def caught_by(certificate: Certificate) -> list[str]:
    """The checks that found it, most specific first."""
    found = [check.name for check in certificate.checks if not check.passed]
    found += ["parts"] if any(not unit.passed for unit in certificate.units) else []
    found += ["layers"] if any(not layer.passed for layer in certificate.layers) else []
    found += ["cases"] if any(case.verdict == "fail" for case in certificate.cases) else []
    return list(dict.fromkeys(found))


def accusations(certificate: Certificate) -> list[str]:
    """Failures that name a place: all but those of whole cases."""
    found = [f"{check.name}: {check.detail}" for check in certificate.checks if not check.passed]
    found += [f"{unit.unit}: {unit.reason}" for unit in certificate.units if not unit.passed]
    return found + [f"{layer.layer}: {layer.reason}" for layer in certificate.layers if not layer.passed]
