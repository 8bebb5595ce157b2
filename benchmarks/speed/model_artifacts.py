"""A model in all its formats on disk, and the softmax model of the same sizes in several ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from torch import nn

from osa_runtime import save_checkpoint
from osa_runtime.errors import OsaError
from osa_runtime.exporters import export
from speed.fused_softmax import FUSED, UnknownGraph, fuse_attention
from speed.models import Subject

ORT, TORCHSCRIPT, PT2, EAGER, COMPILED = "ONNX Runtime", "TorchScript", "pt2", "eager", "torch.compile"
SOFTMAX = "softmax, ONNX Runtime"
FORMATS = {ORT: "onnx", TORCHSCRIPT: "torchscript", PT2: "pt2"}
SOFTMAX_OPSETS = {"MatMul–Softmax–MatMul": 18, "Attention": 23}

Say = Callable[[str], None]


@dataclass(frozen=True)
class Artifacts:
    """``files`` are what ``load`` opens; ``softmax`` likewise, by the way in which it is computed."""

    files: dict[str, Path]
    softmax: dict[str, Path]
    checkpoint: Path
    missing: dict[str, str]


def write_artifacts(
    subject: Subject, model: nn.Module, softmax: nn.Module | None, folder: Path, say: Say, formats: tuple[str, ...]
) -> Artifacts:
    """``formats`` are the contenders that are wanted of ours; what cannot be exported is in ``missing``."""
    files, missing = {}, {}
    for name in formats:
        say(f"{subject.name}: exporting for {name}")
        try:
            files[name] = _export(subject, model, folder / FORMATS[name], format=FORMATS[name])
        except Exception as error:  # noqa: BLE001 - another format may still work, and the report says why this did not
            missing[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return Artifacts(files, _softmax(subject, softmax, folder, say, missing), _checkpoint(model, folder), missing)


def _checkpoint(model: nn.Module, folder: Path) -> Path:
    save_checkpoint(model, folder / "checkpoint")
    return folder / "checkpoint"


def _softmax(
    subject: Subject, model: nn.Module | None, folder: Path, say: Say, missing: dict[str, str]
) -> dict[str, Path]:
    if model is None:
        return {}
    ways = {}
    for way, opset in SOFTMAX_OPSETS.items():
        say(f"{subject.name}: exporting softmax, {way}")
        try:
            ways[way] = _export(subject, model, folder / f"softmax-{opset}", opset=opset)
        except OsaError as error:
            missing[f"{SOFTMAX}, {way}"] = str(error)
    if "Attention" not in ways:
        return ways
    try:
        fused = fuse_attention(onnx.load(ways["Attention"] / "model.onnx"), subject.config.heads)
    except UnknownGraph as error:
        missing[f"{SOFTMAX}, {FUSED}"] = str(error)
    else:
        ways[FUSED] = folder / "softmax-fused.onnx"
        onnx.save(fused, ways[FUSED])
    return ways


def _export(subject: Subject, model: nn.Module, out: Path, **options: Any) -> Path:
    name = subject.input_name
    export(model, (subject.example(),), out, input_names=[name], dynamic_shapes={name: subject.axes}, **options)
    return out
