"""What a checkpoint says an artifact of it must look like."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from osa_runtime.artifact import TensorSpec, sha256
from osa_runtime.exporters.checkpoint_export import example_inputs, value_ranges
from osa_runtime.exporters.interface import DTYPES
from osa_runtime.models import load_checkpoint
from osa_runtime.models.checkpoint import WEIGHTS_FILE, checkpoint_folder
from osa_runtime.nn.depth import rounding_depth
from osa_runtime.parity.certificate import Check
from osa_runtime.parity.signature import TOKENS
from osa_runtime.runtime.interface import ANY_DTYPE
from osa_runtime.verification.subject import Subject


@dataclass(frozen=True)
class Expectation:
    model: nn.Module
    sha256: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...] = ("logits",)

    @classmethod
    def of_checkpoint(cls, folder: Path) -> Expectation:
        model = load_checkpoint(folder)
        examples, axes = example_inputs(model, static=False)
        specs = []
        for (name, dims), example in zip(axes.items(), examples, strict=True):
            shape = tuple(dims[i].__name__ if i in dims else size for i, size in enumerate(example.shape))
            specs.append(TensorSpec(name, DTYPES[example.dtype], shape))
        return cls(model, sha256(checkpoint_folder(folder) / WEIGHTS_FILE), tuple(specs))

    @property
    def width(self) -> int:
        """The size of a head."""
        config: Any = self.model.config
        return int(config.dim // config.heads)

    @property
    def values(self) -> dict[str, dict[str, int]]:
        return value_ranges(self.model)  # type: ignore[arg-type]  # load_checkpoint gives just these models

    @property
    def axes(self) -> dict[str, dict[str, int]]:
        longest = getattr(self.model.config, "max_length", None)
        return {} if longest is None else {TOKENS: {"min": 1, "max": longest}}

    @property
    def depth(self) -> int:
        return rounding_depth(self.model)

    def describe(self) -> dict[str, Any]:
        return {"kind": "checkpoint", "model": type(self.model).__name__, "sha256": self.sha256}


def fill_in(expected: Expectation, subject: Subject) -> tuple[Expectation, Subject]:
    """A torch file alone has no names for its outputs, and TorchScript says nothing of its inputs but their names."""
    if subject.artifact is not None or subject.format == "onnx":
        return expected, subject
    names = tuple(spec.name for spec in subject.session.outputs)
    if len(names) == len(expected.outputs):
        expected = dataclasses.replace(expected, outputs=names)
    unknown = any(spec.dtype == ANY_DTYPE for spec in subject.inputs)
    if unknown and [spec.name for spec in subject.inputs] == [spec.name for spec in expected.inputs]:
        subject = dataclasses.replace(subject, filled=expected.inputs)
    return expected, subject


def check_interface(expected: Expectation, subject: Subject) -> Check:
    """Names, types and sizes. An axis may be fixed where the artifact was exported so, and says so."""
    wrong = _differences(expected.inputs, subject.inputs, subject.dtype)
    names = tuple(spec.name for spec in subject.session.outputs)
    if names != expected.outputs:
        wrong.append(f"its outputs are {', '.join(names)}, expected {', '.join(expected.outputs)}")
    if wrong:
        return Check("interface", False, "; ".join(wrong))
    fixed = [
        f"{theirs} of {ours.name} is fixed at {mine}"
        for theirs_spec, ours in zip(expected.inputs, subject.inputs, strict=True)
        for theirs, mine in zip(theirs_spec.shape, ours.shape, strict=True)
        if isinstance(theirs, str) and isinstance(mine, int)
    ]
    return Check("interface", True, "; ".join(fixed) or "names, types and axes are those of the checkpoint")


def check_weights(expected: Expectation, subject: Subject) -> str | None:
    """A note where the manifest says that the artifact was exported from other weights than these."""
    said = subject.artifact.manifest.source.get("sha256") if subject.artifact is not None else None
    if said in (None, expected.sha256):
        return None
    return f"the artifact was exported from other weights (sha256 {str(said)[:12]}…) than {expected.sha256[:12]}…"


def _differences(expected: Sequence[TensorSpec], found: Sequence[TensorSpec], dtype: str) -> list[str]:
    wanted = [_in_type(spec, dtype) for spec in expected]
    if [spec.name for spec in wanted] != [spec.name for spec in found]:
        return [f"its inputs are {', '.join(map(str, found))}, expected {', '.join(map(str, wanted))}"]
    return [f"{b} should be {a}" for a, b in zip(wanted, found, strict=True) if not _fits(a, b)]


def _fits(expected: TensorSpec, found: TensorSpec) -> bool:
    if expected.dtype != found.dtype or len(expected.shape) != len(found.shape):
        return False
    return all(isinstance(a, str) or a == b for a, b in zip(expected.shape, found.shape, strict=True))


def _in_type(spec: TensorSpec, dtype: str) -> TensorSpec:
    half = dtype == "fp16" and spec.dtype == "float32"
    return TensorSpec(spec.name, "float16", spec.shape) if half else spec
