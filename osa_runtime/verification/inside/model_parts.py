"""The interface for looking inside a model: its parts, seen in one run and called alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from osa_runtime.errors import RunError
from osa_runtime.nn import IsometricMLP
from osa_runtime.nn.projection import PackedProjection

Array = NDArray[Any]

# The inputs (a tensor, perhaps a mask) and the result of each unit in one run.
Calls = Mapping[str, tuple[tuple[Array, ...], Array]]


@dataclass(frozen=True)
class Glue:
    """The values between units: the tensor that each unit would receive, and the outputs of the model.

    ``masks`` are those that units would receive, as far as they are computed between units.
    """

    inputs: Mapping[str, Array]
    outputs: tuple[Array, ...]
    masks: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """A part as a model of its own: the name of its file, its inputs by name (in order, for torch), and the result.

    The result is the output of this number or, if ``kept_by`` names a module of the file, the input of that module.
    """

    file: str
    inputs: Mapping[str, Array]
    output: int = 0
    kept_by: str | None = None


@dataclass(frozen=True)
class Core:
    """The inputs and the output of one call of orthogonal attention.

    q, k: (batch, heads, N, d); v, out: (batch, heads, N, e); scale: a scalar or (heads,);
    mask: broadcasts to (batch, heads, N), True for real tokens.
    """

    q: Array
    k: Array
    v: Array
    scale: Array
    mask: Array | None
    out: Array
    squarings: int | None = None  # if the model counts them itself
    rounded: tuple[Array, ...] | None = None  # q, k, v as a node that is a whole layer rounds them, if it does


class ModelParts(ABC):
    """The parts of a model, named as in the module tree: ``embed``, ``stack.blocks.0.attention``, ``head``.

    A unit takes and returns one tensor, and may take a mask as well. ``attentions`` are the calls of orthogonal
    attention, by the unit that makes them. Both are in the order of execution, and empty if a model does not show
    its parts. Errors of the runtime become a RunError.
    """

    units: tuple[str, ...] = ()
    attentions: tuple[str, ...] = ()

    @abstractmethod
    def outputs_of(self, units: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of these units in one run of the whole model."""

    @abstractmethod
    def inputs_of(self, units: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The tensors that these units receive in one run of the whole model."""

    @abstractmethod
    def call(self, unit: str, inputs: Sequence[Array], feeds: Mapping[str, Array] | None = None) -> Array:
        """Run the unit alone, on the inputs that its ``forward`` takes: (x,) or (x, mask).

        ``feeds`` are the model's inputs of the same run: any part of a graph may read sizes from them.
        """

    @abstractmethod
    def between(self, calls: Calls, feeds: Mapping[str, Array]) -> Glue:
        """The values computed outside these units if each of them takes and returns the values in ``calls``.

        Units and glue together are the whole model: every operator is inside a unit or between units.
        """

    @abstractmethod
    def cores_of(self, attentions: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Core]:
        """The calls of orthogonal attention in one run of the whole model."""

    @abstractmethod
    def apply_attention(self, attention: str, core: Core, v: Array) -> Array:
        """exp(S)·v as this layer of this model computes it, with the queries, keys and mask of ``core``.

        ``v`` has the shape of ``core.v``.
        """

    def overflow(self, unit: str, inputs: Sequence[Array]) -> str | None:  # noqa: ARG002 - for formats that can tell
        """Describe a value inside a half-precision unit that is beyond the type's range on these inputs, if any.

        A runtime that computes half precision in float32 does not show it in the output.
        """
        return None

    def write_unit(self, unit: str, inputs: Sequence[Array], folder: Path, _: Mapping[str, Array]) -> Written:
        """Write the unit as a model of its own. The last argument has the model's inputs, as for ``call``."""
        raise RunError(f"{unit} with its {len(inputs)} inputs cannot be written to {folder} on its own.")

    def write_between(self, end: str | int, calls: Calls, feeds: Mapping[str, Array], folder: Path) -> Written:
        """Write the operators before ``end``, a unit or the number of an output, as a model of its own."""
        known = f"from {len(calls)} parts and {list(feeds)}"
        raise RunError(f"the operators before {end}, {known}, cannot be written to {folder}.")

    def close(self) -> None:  # noqa: B027 - most have nothing to free
        """Free the memory."""


def is_closed(kind: str, children: Iterable[str]) -> bool:
    """True for an attention layer or MLP of ours, by class names, which are all that an artifact keeps.

    A layer with packed projections is one of the attention layers, or a subclass under a name of its own.
    """
    return _bare(kind) == IsometricMLP.__name__ or PackedProjection.__name__ in map(_bare, children)


def _bare(kind: str) -> str:
    return kind.rpartition(".")[2]


T = TypeVar("T")

BUDGET = 256 * 2**20  # bytes


def chunks(things: Sequence[T], bytes_each: int, budget: int = BUDGET) -> Iterator[tuple[T, ...]]:
    """Work in pieces, so that the values held at one time stay within a budget at any depth of the model."""
    size = max(1, budget // max(1, bytes_each))
    for start in range(0, len(things), size):
        yield tuple(things[start : start + size])
