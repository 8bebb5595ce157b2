"""What a model takes and gives: from its manifest, or from the model file itself when it came alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from osa_runtime.artifact import Manifest, TensorSpec
from osa_runtime.errors import InterfaceError

# A TorchScript file without manifest names its inputs and says nothing of their types and shapes.
ANY_DTYPE = "any"
ANY_SHAPE: tuple[int | str, ...] = ("...",)


@dataclass(frozen=True)
class Interface:
    """``axes`` has the range of each dynamic axis that has one, ``optional`` the inputs that may be left out.

    ``values`` has the range of the whole numbers that an input may hold: ids, or pixels in bytes.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    axes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    values: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def manifest_interface(manifest: Manifest) -> Interface:
    return Interface(manifest.inputs, manifest.outputs, manifest.axes, values=manifest.values)


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
