"""The example inputs of a module: their names, types and axes, dynamic or fixed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from osa_runtime.errors import ExportError, InputError
from osa_runtime.exporters.dynamic_axes import as_torch_takes, read_shapes, resolve
from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.sample_inputs import sample_inputs

DTYPES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.float64: "float64",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.uint8: "uint8",
    torch.bool: "bool",
}


@dataclass(frozen=True)
class Examples:
    """Example inputs with names, and for each its dynamic axes as ``torch.export.Dim``."""

    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    axes: tuple[dict[int, Any], ...]

    UNBOUNDED: ClassVar[int] = 2**31

    def input_specs(self) -> tuple[TensorSpec, ...]:
        return tuple(
            spec(name, x, {axis: dim.__name__ for axis, dim in axes.items()})
            for name, x, axes in zip(self.names, self.tensors, self.axes, strict=True)
        )

    def shapes(self, module: nn.Module) -> tuple[Any, ...] | None:
        """The dynamic axes as torch.export takes them; None for a model of fixed shapes."""
        return as_torch_takes(module, self.axes) if any(self.axes) else None

    def dimensions(self) -> dict[str, Any]:
        """Every dynamic axis by its name."""
        return {dim.__name__: dim for axes in self.axes for dim in axes.values()}

    def high(self, dim: Any) -> int:
        return int(min(getattr(dim, "max", self.UNBOUNDED), self.UNBOUNDED))

    def other_sizes(self) -> Iterator[tuple[tuple[str, int], tuple[Tensor, ...]]]:
        """The examples with one dynamic axis at a time at another size: the smallest, and more than twice as long."""
        for name, dim in self.dimensions().items():
            for size in (max(1, int(getattr(dim, "min", 0))), min(2 * self._size(name) + 1, self.high(dim))):
                if size != self._size(name):
                    yield (
                        (name, size),
                        tuple(
                            _resized(x, [axis for axis, d in axes.items() if d.__name__ == name], size)
                            for x, axes in zip(self.tensors, self.axes, strict=True)
                        ),
                    )

    def beyond(self, axis: tuple[str, int], problem: str) -> InputError:
        """The error for a module that fails at a size that its declared axis allows."""
        name, size = axis
        known = self._size(name)
        end, bound = ("smallest", "min") if size < known else ("largest", "max")
        return InputError(
            f"The module itself {problem} with the axis '{name}' at size {size}. Declare the {end} size that it "
            f'accepts, as in torch.export.Dim("{name}", {bound}={known}); or make the axis static.'
        )

    def _size(self, name: str) -> int:
        pairs = zip(self.tensors, self.axes, strict=True)
        return next(x.shape[axis] for x, axes in pairs for axis, d in axes.items() if d.__name__ == name)


def _resized(x: Tensor, axes: list[int], size: int) -> Tensor:
    """Repeat or cut along the axes, so that the values stay valid, whatever they mean."""
    for axis in axes:
        x = x.index_select(axis, torch.arange(size) % x.shape[axis])
    return x


def spec(name: str, x: Tensor, axes: Mapping[int, str]) -> TensorSpec:
    if x.dtype not in DTYPES:
        raise ExportError(
            f"{name} has the type {x.dtype}, which an artifact cannot hold; use {', '.join(DTYPES.values())}."
        )
    return TensorSpec(name, DTYPES[x.dtype], tuple(axes.get(i, size) for i, size in enumerate(x.shape)))


def describe_examples(module: nn.Module, args: Sequence[Tensor], names: Sequence[str] | None, shapes: Any) -> Examples:
    """Examples with names from the signature of ``forward`` unless given, and axes as torch.export takes them."""
    if not args or not all(isinstance(x, Tensor) for x in args):
        raise InputError(f"Expected example inputs as a tuple of tensors, got {[type(x).__name__ for x in args]}.")
    found = tuple(names) if names is not None else _signature_names(module, len(args))
    if len(found) != len(args) or len(set(found)) != len(found):
        raise InputError(f"Expected {len(args)} distinct input names, one per example input, got {list(found)}.")
    # torch.export makes the strides of a view part of the interface, and refuses sizes for which they differ
    examples = tuple(x.contiguous() for x in args)
    axes = resolve(module, found, examples, read_shapes(module, found, examples, shapes))
    return Examples(found, examples, axes)


def made_examples(
    interface: Interface, sizes: Mapping[str, int], kind: str = "random", smallest: Mapping[str, int] | None = None
) -> tuple[tuple[Tensor, ...], dict[str, dict[int, Any]]]:
    """Seeded examples for a known interface, and the dynamic axes of each input by its name.

    The second half of the last sequence is padding where there is a mask.
    """
    feeds = sample_inputs(interface, sizes, kind)
    if interface.mask is not None:
        real = feeds[interface.mask]
        real[-1, ..., max(1, real.shape[-1] // 2) :] = False
    least = {axis: interface.least(axis) for axis in interface.names} | dict(smallest or {})
    dims = {axis: torch.export.Dim(axis, min=least[axis], max=interface.limit(axis)) for axis in interface.names}
    tensors = (torch.from_numpy(feeds[spec.name]) for spec in interface.inputs)
    axes = {
        spec.name: {index: dims[axis] for index, axis in enumerate(spec.shape) if isinstance(axis, str)}
        for spec in interface.inputs
    }
    return tuple(x.float() if x.dtype == torch.float16 else x for x in tensors), axes


def positional(module: nn.Module, args: Tensor | Sequence[Tensor], kwargs: Mapping[str, Tensor]) -> tuple[Any, ...]:
    """All inputs in the order of ``forward``, which is also their order in an artifact."""
    given = (args,) if isinstance(args, Tensor) else args
    if not isinstance(given, (tuple, list)):
        raise InputError(f"Expected example inputs as a tensor or a tuple of tensors, got {type(given).__name__}.")
    if not kwargs:
        return tuple(given)
    try:
        bound = inspect.signature(module.forward).bind(*given, **kwargs)
    except TypeError as error:
        raise InputError(f"The example inputs do not fit the module's forward: {error}.") from error
    if bound.kwargs:
        raise InputError(
            f"The inputs {', '.join(bound.kwargs)} cannot be passed by position, as an artifact takes them: pass those "
            "before them, too, and no keyword-only ones."
        )
    return bound.args


def _signature_names(module: nn.Module, count: int) -> tuple[str, ...]:
    parameters = list(inspect.signature(module.forward).parameters.values())
    if len(parameters) < count or any(p.kind is p.VAR_POSITIONAL for p in parameters[:count]):
        raise InputError("Cannot take input names from forward's signature; pass input_names.")
    return tuple(p.name for p in parameters[:count])
