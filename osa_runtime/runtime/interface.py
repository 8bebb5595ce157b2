"""What a model takes and gives: from its manifest, or from the model file itself when it came alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from osa_runtime.artifact import Manifest, TensorSpec
from osa_runtime.errors import ArtifactError, InterfaceError

DTYPES = ("float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")

# A TorchScript file without manifest names its inputs and says nothing of their types and shapes.
ANY_DTYPE = "any"
ANY_SHAPE: tuple[int | str, ...] = ("...",)


@dataclass(frozen=True)
class Interface:
    """``axes`` has the range of each dynamic axis that has one, ``optional`` the inputs that may be left out."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    axes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()


def manifest_interface(manifest: Manifest, where: str) -> Interface:
    """The interface that a manifest declares, refused where no model can have it."""
    for kind, specs in (("input", manifest.inputs), ("output", manifest.outputs)):
        names = [spec.name for spec in specs]
        if not names or len(set(names)) != len(names):
            raise ArtifactError(f"{where} names the {kind}s {names}, expected at least one and each once.")
        for spec in specs:
            _check_spec(spec, kind, where)
    return Interface(manifest.inputs, manifest.outputs, manifest.axes)


def _check_spec(spec: TensorSpec, kind: str, where: str) -> None:
    if spec.dtype not in DTYPES:
        raise ArtifactError(f"{where} gives {kind} {spec.name} the type {spec.dtype!r}, expected {', '.join(DTYPES)}.")
    if any(isinstance(axis, bool) or (isinstance(axis, int) and axis < 0) for axis in spec.shape):
        raise ArtifactError(f"{where} gives {kind} {spec.name} the shape {list(spec.shape)}; sizes are 0 or more.")


def check_agreement(declared: Interface, found: Interface, where: str) -> None:
    """A manifest whose names or types are not the model's belongs to another model."""
    for kind, ours, theirs in (
        ("inputs", declared.inputs, found.inputs),
        ("outputs", declared.outputs, found.outputs),
    ):
        if _signature(ours) != _signature(theirs):
            raise InterfaceError(
                f"{where} declares the {kind} {_listed(ours)}, but the model beside it has {_listed(theirs)}; "
                "export the model again."
            )


def _signature(specs: Sequence[TensorSpec]) -> list[tuple[str, str, int]]:
    return sorted((spec.name, spec.dtype, len(spec.shape)) for spec in specs)


def _listed(specs: Sequence[TensorSpec]) -> str:
    return "; ".join(map(str, specs)) or "none"
