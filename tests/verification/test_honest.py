"""Honest exports pass: 200 artifacts of all configurations, formats, types and lengths up to 2048.

A few run with the other tests, all of them with ``make test-long``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from made_once import export_checkpoint
from osa_runtime.models import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig, save_checkpoint
from osa_runtime.quantization import quantize
from osa_runtime.verification import VerifySettings, verify

pytestmark = pytest.mark.slow

COUNT = 200


@dataclass(frozen=True)
class Draw:
    """One model and one way to export it, from its number alone."""

    number: int
    kind: str
    config: dict[str, Any]
    options: dict[str, Any]
    activations: str | None  # of a quantised one

    @property
    def cost(self) -> int:
        slow = 4000 if self.options["format"] == "pt2" else 0
        return slow + self.config.get("max_length", 16) * int(self.config["depth"]) + 200 * bool(self.activations)

    @property
    def traits(self) -> tuple[str, ...]:
        """The property that tells it from others: its quantisation, or its format and mechanism."""
        return (self.activations,) if self.activations else (self.options["format"], self.config["attention"])

    def __str__(self) -> str:
        words = [self.kind, self.config["attention"], *map(str, self.options.values()), self.activations or ""]
        return "-".join([str(self.number), *filter(None, words), str(self.config.get("max_length", ""))])


def drawn(number: int) -> Draw:
    chance = random.Random(number)
    dim, heads = chance.choice([(8, 2), (16, 2), (16, 4), (12, 3), (8, 1)])
    config: dict[str, Any] = {"dim": dim, "heads": heads, "depth": chance.choice([1, 2, 3])}
    config["attention"] = chance.choice(["osa", "osa", "osa", "softmax", "polynomial"])
    skips = config["attention"] == "polynomial" or chance.random() < 0.3  # without them polynomial attention explodes
    config |= {"residual": skips, "norm": skips, "conditioning": chance.choice(["none", "none", "spectral"])}
    config |= {"activation": chance.choice(["leaky_relu", "gelu"]), "alpha": chance.choice([0.015, 0.1, 0.5])}
    if config["attention"] == "osa":
        config |= {"form": chance.choice(["auto", "auto", "lowrank", "dense"])}
        config |= {"approximant": chance.choice(["taylor", "taylor", "pade"])}
    kind = chance.choice(["vit", "words", "vectors"])
    longest = 2048 if number % 40 == 7 else chance.choice([7, 33, 64, 130, 300])
    extra: dict[str, dict[str, Any]] = {
        "vit": {"classes": 10, "pool": chance.choice(["mean", "cls"])},
        "words": {"classes": 3, "vocabulary": 11, "max_length": longest, "head": chance.choice(["sequence", "token"])},
        "vectors": {"classes": 3, "features": 5, "max_length": longest, "positions": "learned"},
    }
    options: dict[str, Any] = {"format": chance.choice(["onnx", "onnx", "onnx", "torchscript", "pt2"])}
    options |= {"dtype": "fp16"} if chance.random() < 0.15 else {}
    if options["format"] == "onnx":
        options |= chance.choice([{}, {"functions": "inline"}, {"external_data": True}])
    small = options["format"] == "onnx" and "dtype" not in options and chance.random() < 0.25
    # Dynamic activations are not drawn: one range for a whole batch lets rows disturb each other, and verify says so.
    return Draw(number, kind, config | extra[kind], options, ("none", "static")[number % 2] if small else None)


def examples(draw: Draw, file: Path) -> Path:
    """The examples from which a static quantisation takes its ranges."""
    generator, tokens = np.random.default_rng(draw.number), min(draw.config.get("max_length", 0), 20)
    if draw.kind == "vit":
        np.savez(file, images=generator.standard_normal((64, 1, 8, 8)).astype(np.float32))
        return file
    values: Any = generator.standard_normal((64, tokens, 5)).astype(np.float32)
    ids = generator.integers(0, 11, (64, tokens))
    mask = np.arange(tokens) < generator.integers(1, tokens + 1, (64, 1))
    np.savez(file, tokens=ids if draw.kind == "words" else values, mask=mask)
    return file


DRAWS = [drawn(number) for number in range(COUNT)]
# The cheapest of each trait, in every run of the tests. Programs of torch.export are verified in other tests.
BY_TRAITS = {
    draw.traits: draw.number for draw in sorted(DRAWS, key=lambda draw: -draw.cost) if "pt2" not in draw.traits
}
CHEAP = set(BY_TRAITS.values())


@pytest.mark.parametrize(
    "draw",
    [pytest.param(draw, marks=() if draw.number in CHEAP else pytest.mark.long, id=str(draw)) for draw in DRAWS],
)
def test_an_honest_artifact_passes(draw: Draw, tmp_path: Path) -> None:
    torch.manual_seed(draw.number)
    if draw.kind == "vit":
        save_checkpoint(SkiplessViT(ViTConfig(**draw.config)), tmp_path / "checkpoint")
    else:
        save_checkpoint(SkiplessEncoder(EncoderConfig(**draw.config)), tmp_path / "checkpoint")
    artifact = export_checkpoint(tmp_path / "checkpoint", tmp_path / "artifact", **draw.options).folder
    if draw.activations is not None:
        given = examples(draw, tmp_path / "examples.npz") if draw.activations == "static" else None
        out = tmp_path / "quantised"
        artifact = quantize(artifact, out, activations=draw.activations, calibration=given).artifact.folder
    certificate = verify(artifact, tmp_path / "checkpoint", VerifySettings(quick=True)).certificate
    assert certificate.verdict == "pass", certificate.failures()
