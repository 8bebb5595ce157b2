"""A model's inputs and outputs: names, types, axes and their roles. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osa_runtime.errors import InterfaceError
from osa_runtime.pixels import Standardisation

# A TorchScript file without a manifest names its inputs, but not their types and shapes.
ANY_DTYPE = "any"
ANY_SHAPE: tuple[int | str, ...] = ("...",)

Range = Mapping[str, int]  # {"min": …, "max": …}, either of which may be missing


@dataclass(frozen=True)
class TensorSpec:
    """One input or output. An axis is a number when it is fixed and a name when it is dynamic."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"

    def sized(self, sizes: Mapping[str, int]) -> list[int]:
        """The shape with a size in place of every name."""
        return [axis if isinstance(axis, int) else sizes[axis] for axis in self.shape]


@dataclass(frozen=True)
class Roles:
    """The axis of independent rows, and the input that is True for real tokens and False for padding.

    Names are not enough: rows that attend to each other must not share a batch, and a mask may be True for padding.
    So the export tries both on the module and records what it found.
    """

    batch: str | None = None
    mask: str | None = None


@dataclass(frozen=True)
class Interface:
    """``axes`` has the range of each dynamic axis that has one, ``values`` that of the ids (or bytes) in an input.

    ``pixels`` holds the standardisation of inputs that are images, ``optional`` the inputs that may be left out.
    ``roles`` is None for a model that was not exported by us: then only the names "batch…" and "mask" count.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] = ()
    axes: Mapping[str, Range] = field(default_factory=dict)
    values: Mapping[str, Range] = field(default_factory=dict)
    pixels: Mapping[str, Standardisation] = field(default_factory=dict)
    roles: Roles | None = None
    optional: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """The dynamic axes of the inputs, in the order in which they appear."""
        known = [spec for spec in self.inputs if spec.shape != ANY_SHAPE]
        return tuple(dict.fromkeys(axis for spec in known for axis in spec.shape if isinstance(axis, str)))

    @property
    def batch(self) -> str | None:
        """The dynamic axis of independent rows."""
        if self.roles is not None:
            return self.roles.batch if self.roles.batch in self.names else None
        leading = leading_axis(self.inputs)
        return leading if leading is not None and leading.startswith("batch") else None

    @property
    def lengths(self) -> tuple[str, ...]:
        return tuple(axis for axis in self.names if axis != self.batch)

    @property
    def mask(self) -> str | None:
        """The input that is True for real tokens."""
        if self.roles is not None:
            return self.roles.mask
        return next((spec.name for spec in mask_candidates(self.inputs) if spec.name == "mask"), None)

    def least(self, axis: str) -> int:
        return max(1, self.axes.get(axis, {}).get("min", 1))

    def limit(self, axis: str) -> int | None:
        return self.axes.get(axis, {}).get("max")

    def takes(self, axis: str, size: int) -> bool:
        limit = self.limit(axis)
        return self.least(axis) <= size and (limit is None or size <= limit)

    def fitting(self, axis: str, size: int) -> int:
        """The nearest size that the axis allows."""
        limit = self.limit(axis)
        return max(self.least(axis), size if limit is None else min(size, limit))

    def ids(self, name: str) -> tuple[int, int]:
        """The smallest and the largest whole number of an input; 0 and 1 are in nearly every vocabulary."""
        limits = self.values.get(name, {})
        low = limits.get("min", 0)
        return low, max(low, limits.get("max", 1))

    def sizes(self, feeds: Mapping[str, Any]) -> dict[str, int]:
        """The size of each named axis in arrays that have the model's ranks; others are ignored."""
        pairs = [
            (axis, size)
            for spec in self.inputs
            if spec.name in feeds and len(feeds[spec.name].shape) == len(spec.shape) and spec.shape != ANY_SHAPE
            for axis, size in zip(spec.shape, feeds[spec.name].shape, strict=True)
        ]
        return {axis: size for axis, size in reversed(pairs) if isinstance(axis, str)}

    def missing_mask(self, feeds: Mapping[str, Any]) -> list[int] | None:
        """The shape of the mask that the feeds lack; None if they do not lack one."""
        spec = next((spec for spec in self.inputs if spec.name == self.mask), None)
        if spec is None or spec.name in feeds:
            return None
        sizes = self.sizes(feeds)
        return spec.sized(sizes) if all(isinstance(axis, int) or axis in sizes for axis in spec.shape) else None


def leading_axis(specs: Iterable[TensorSpec]) -> str | None:
    """The dynamic first axis of the first input that has axes, unless it is also another axis of an input."""
    shapes = [spec.shape for spec in specs if spec.shape and spec.shape != ANY_SHAPE]
    first = shapes[0][0] if shapes else None
    return first if isinstance(first, str) and all(first not in shape[1:] for shape in shapes) else None


def mask_candidates(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Boolean inputs with rows and tokens; a boolean of lower rank is a switch."""
    return [spec for spec in specs if spec.dtype == "bool" and len(spec.shape) > 1]


def check_agreement(declared: Interface, found: Interface, where: str) -> None:
    """Refuse a manifest whose names or types are not the model's: it belongs to another model."""
    for kind, ours, theirs in (("inputs", declared.inputs, found.inputs), ("outputs", declared.outputs, found.outputs)):
        if _signature(ours) != _signature(theirs):
            raise InterfaceError(
                f"{where} declares the {kind} {_listed(ours)}, but the model next to it has {_listed(theirs)}; "
                "export the model again."
            )


def _signature(specs: Sequence[TensorSpec]) -> list[tuple[str, str, int]]:
    return sorted((spec.name, spec.dtype, len(spec.shape)) for spec in specs)


def _listed(specs: Sequence[TensorSpec]) -> str:
    return "; ".join(map(str, specs)) or "none"
