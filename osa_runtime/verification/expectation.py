"""The artifact that a reference should produce: a checkpoint, a module, or the return value of a factory."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from torch import nn

from osa_runtime.artifact import Artifact, sha256
from osa_runtime.exporters.checkpoint_export import export_checkpoint, load_model
from osa_runtime.exporters.eager import rounding_depth
from osa_runtime.exporters.factory import check_factory, export_built, load_factory
from osa_runtime.exporters.manifest_entries import is_static, recorded_examples, recorded_options
from osa_runtime.exporters.pipeline import export
from osa_runtime.interface import ANY_DTYPE, Range, TensorSpec
from osa_runtime.manifest import Manifest
from osa_runtime.models.checkpoint import WEIGHTS_FILE, checkpoint_folder
from osa_runtime.nn import OrthogonalSelfAttention
from osa_runtime.parity.certificate import Check
from osa_runtime.pixels import Standardisation
from osa_runtime.verification.subject import Subject

Repeat = Callable[[Manifest, Path], Artifact]


@dataclass(frozen=True)
class Expectation:
    """A reference, and ``repeat``, which exports it again to a folder with the settings of a manifest.

    ``unrounded`` is the reference itself if ``model`` has its matrices rounded like those of a quantised artifact.
    """

    kind: Literal["checkpoint", "module", "factory"]
    model: nn.Module
    repeat: Repeat
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...] = ("logits",)
    sha256: str | None = None
    values: Mapping[str, Range] = field(default_factory=dict)
    axes: Mapping[str, Range] = field(default_factory=dict)
    unrounded: nn.Module | None = None

    @classmethod
    def of_checkpoint(cls, folder: Path, pixels: str = "float32") -> Expectation:
        """Expect an export of the checkpoint; ``pixels`` is the type in which the artifact takes images."""
        model = load_model(folder, pixels)
        interface = model.interface()
        return cls(
            "checkpoint",
            model,
            lambda manifest, out: export_checkpoint(
                folder, out, static=is_static(manifest), pixels=pixels, checked=False, **recorded_options(manifest)
            ),
            interface.inputs,
            sha256=sha256(checkpoint_folder(folder) / WEIGHTS_FILE),
            values=interface.values,
            axes=interface.axes,
        )

    @classmethod
    def of_factory(cls, factory: str, weights: str | Path | None, subject: Subject) -> Expectation:
        """Expect an export of the factory's module, with the output names and value ranges that the factory returns."""
        check_factory(factory, weights)
        built = load_factory(factory, weights)

        def repeat(manifest: Manifest, out: Path) -> Artifact:
            return export_built(built, out, static=is_static(manifest), checked=False, **recorded_options(manifest))

        known = cls.of_module(built.module, subject)
        names = built.options.get("output_names")
        return dataclasses.replace(
            known,
            kind="factory",
            repeat=repeat,
            outputs=known.outputs if names is None else tuple(names),
            sha256=None if weights is None else sha256(Path(weights)),
            values={name: dict(limits) for name, limits in (built.options.get("value_ranges") or {}).items()},
        )

    @classmethod
    def of_module(cls, module: nn.Module, subject: Subject) -> Expectation:
        """Expect an export of the module, with the artifact's inputs and outputs: a module declares none."""

        def repeat(manifest: Manifest, out: Path) -> Artifact:
            examples, axes = recorded_examples(manifest)
            return export(
                module,
                examples,
                out,
                dynamic_shapes=axes,
                input_names=list(axes),
                output_names=[spec.name for spec in manifest.outputs],
                value_ranges=manifest.values,
                preprocessing={name: Standardisation.from_dict(f) for name, f in manifest.preprocessing.items()},
                class_names=manifest.class_names,
                checked=False,
                **recorded_options(manifest),
            )

        outputs = tuple(spec.name for spec in subject.session.outputs)
        return cls("module", copy.deepcopy(module).eval(), repeat, _in_float32(subject.session.inputs), outputs)

    def arithmetic(self, dtype: str) -> str:
        """The type whose rounding the tolerance has to allow for: with equal weights, that of the products."""
        return "fp32" if self.unrounded is not None and dtype == "w8" else dtype

    @property
    def width(self) -> int | None:
        """The size of a head of the first attention layer."""
        layers = (layer for layer in self.model.modules() if isinstance(layer, OrthogonalSelfAttention))
        config: Any = getattr(self.model, "config", None)
        declared = int(config.dim // config.heads) if hasattr(config, "dim") and hasattr(config, "heads") else None
        return next((int(layer.project.width) for layer in layers), declared)

    @cached_property  # every row of every case asks for it
    def depth(self) -> int:
        return rounding_depth(self.model)

    def describe(self) -> dict[str, Any]:
        known = {"kind": self.kind, "model": type(self.model).__name__}
        return known if self.sha256 is None else known | {"sha256": self.sha256}


def _in_float32(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The inputs of the float32 module that a half-precision artifact comes from."""
    return tuple(TensorSpec(s.name, "float32" if s.dtype == "float16" else s.dtype, s.shape) for s in specs)


def fill_in(expected: Expectation, subject: Subject) -> tuple[Expectation, Subject]:
    """Complete what a torch file without a manifest lacks: output names, and for TorchScript input types and shapes."""
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
    """Check names, types and sizes. An axis may be fixed if the artifact declares it so."""
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
    return Check("interface", True, "; ".join(fixed) or f"names, types and axes are those of the {expected.kind}")


def check_weights(expected: Expectation, subject: Subject) -> str | None:
    """Return a note if the manifest says that the artifact was exported from other weights than these."""
    said = subject.artifact.manifest.source.get("sha256") if subject.artifact is not None else None
    if expected.sha256 is None or said in (None, expected.sha256):
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
