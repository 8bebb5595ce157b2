"""The inputs of a model, and what is known of them beyond their shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from osa_runtime.artifact import TensorSpec
from osa_runtime.pixels import Standardisation

TOKENS = "tokens"  # an axis of this name is a length, wherever it stands


@dataclass(frozen=True)
class Signature:
    """``axes`` has the range of each dynamic axis that has one, ``values`` that of the ids in an input.

    ``pixels`` has what was done to the pixels of an input before the model saw them.
    """

    inputs: tuple[TensorSpec, ...]
    axes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    pixels: Mapping[str, Standardisation] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The dynamic axes, in the order in which they appear."""
        found = [axis for spec in self.inputs for axis in spec.shape if isinstance(axis, str)]
        return tuple(dict.fromkeys(found))

    @property
    def batch(self) -> str | None:
        """The dynamic axis of the rows: the first one of the first input, unless that is a length."""
        first = self.inputs[0].shape[:1] if self.inputs else ()
        return next((axis for axis in first if isinstance(axis, str) and axis != TOKENS), None)

    @property
    def lengths(self) -> tuple[str, ...]:
        return tuple(axis for axis in self.names if axis != self.batch)

    @property
    def mask(self) -> str | None:
        """The input that says which tokens are real; a boolean of lower rank is a switch."""
        return next((spec.name for spec in self.inputs if spec.dtype == "bool" and len(spec.shape) > 1), None)

    def least(self, axis: str) -> int:
        return max(1, self.axes.get(axis, {}).get("min", 1))

    def limit(self, axis: str) -> int | None:
        return self.axes.get(axis, {}).get("max")
