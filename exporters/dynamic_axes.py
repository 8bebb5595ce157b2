"""``dynamic_shapes`` in every spelling that torch.export takes, as one dimension or hint for each axis."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.errors import InputError

Axes = tuple[dict[int, Any], ...]

HINT: Any = type(torch.export.Dim.AUTO)
EXPECTED = (
    "expected {input: {axis: name}}, as in {'x': {0: 'batch'}}, or the same by position; a dimension is a name without "
    "spaces, a torch.export.Dim, Dim.AUTO, Dim.DYNAMIC, Dim.STATIC, the size itself, or None"
)


def spelled_out(module: nn.Module, args: Sequence[Any], shapes: Any) -> Any:
    """torch.export's ShapesCollection and AdditionalInputs know tensors by identity: before any of them is copied."""
    if not isinstance(shapes, (torch.export.ShapesCollection, torch.export.AdditionalInputs)):
        return shapes
    try:
        return shapes.dynamic_shapes(module, tuple(args))
    except (ValueError, TypeError) as error:
        raise InputError(f"dynamic_shapes does not fit the example inputs: {error}") from error


def read_shapes(module: nn.Module, names: Sequence[str], args: Sequence[Tensor], shapes: Any) -> Axes:
    """The dynamic axes of each input: torch.export.Dim for what has a name, Dim.AUTO and Dim.DYNAMIC as they are."""
    by_input = _by_input(module, names, shapes)
    known: dict[str, Any] = {}
    read = [_axes(name, x, spec, known) for name, x, spec in zip(names, args, by_input, strict=True)]
    # By name once more: only the last mention of a dimension may have brought its range.
    found = tuple(
        {i: dim if isinstance(dim, HINT) else known[dim.__name__] for i, dim in axes.items()} for axes in read
    )
    for name, x, axes in zip(names, args, found, strict=True):
        _check_examples(name, x, axes)
    return found


def as_torch_takes(module: nn.Module, axes: Axes) -> tuple[Any, ...]:
    """One entry for each parameter of forward, which for ``*inputs`` holds those of all of them."""
    parameters = inspect.signature(module.forward).parameters.values()
    single = next((i for i, p in enumerate(parameters) if p.kind is p.VAR_POSITIONAL), len(axes))
    return axes if single >= len(axes) else (*axes[:single], axes[single:])


def is_hint(dim: Any, *kinds: str) -> bool:
    return isinstance(dim, HINT) and dim.type.name in kinds


def _by_input(module: nn.Module, names: Sequence[str], shapes: Any) -> Sequence[Any]:
    if shapes is None:
        return [None] * len(names)
    if isinstance(shapes, Mapping):
        return _by_name(module, names, shapes)
    if not isinstance(shapes, (tuple, list)):
        raise InputError(f"dynamic_shapes={shapes!r}: {EXPECTED}.")
    if len(shapes) == 1 and len(names) > 1 and isinstance(shapes[0], (tuple, list)):
        shapes = shapes[0]  # of forward(*inputs), for which torch.export takes one entry with all in it
    if len(shapes) not in (0, len(names)):
        raise InputError(f"dynamic_shapes has {len(shapes)} entries for the {len(names)} inputs {list(names)}.")
    return shapes or [None] * len(names)


def _by_name(module: nn.Module, names: Sequence[str], shapes: Mapping[Any, Any]) -> Sequence[Any]:
    """By the names of the inputs, or, as in torch.export, by those of the parameters of forward."""
    if len(names) == 1 and shapes and all(type(key) is int for key in shapes):
        return [shapes]
    parameters = list(inspect.signature(module.forward).parameters.values())
    many = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    if list(shapes) == many:
        return _by_input(module, names, shapes[many[0]])
    theirs = {p.name: name for p, name in zip(parameters, names, strict=False) if p.name not in names}
    found = {theirs.get(key, key): spec for key, spec in shapes.items()}
    unknown = sorted(str(key) for key in found if key not in names)
    if unknown:
        raise InputError(f"dynamic_shapes names the inputs {unknown}, but the inputs are {list(names)}.")
    return [found.get(name) for name in names]


def _axes(name: str, x: Tensor, spec: Any, known: dict[str, Any]) -> dict[int, Any]:
    if spec is None:
        return {}
    if isinstance(spec, (tuple, list)):
        if len(spec) != x.dim():
            raise InputError(
                f"dynamic_shapes of {name} has {len(spec)} dimensions, but its example has {x.dim()}: {tuple(x.shape)}."
            )
        spec = dict(enumerate(spec))
    if not isinstance(spec, Mapping):
        raise InputError(f"dynamic_shapes of {name} is {spec!r}; {EXPECTED}.")
    for axis, dim in spec.items():
        if type(axis) is not int or not 0 <= axis < x.dim():
            raise InputError(
                f"dynamic_shapes of {name} has the axis {axis!r} ({dim!r}), but {name} has {x.dim()} axes; {EXPECTED}."
            )
    dims = {axis: _dimension(name, axis, dim, x.shape[axis], known) for axis, dim in sorted(spec.items())}
    return {axis: dim for axis, dim in dims.items() if dim is not None}


def _dimension(name: str, axis: int, dim: Any, size: int, known: dict[str, Any]) -> Any:
    """None where the axis is fixed."""
    if dim is None or is_hint(dim, "STATIC"):
        return None
    if type(dim) is int:
        if dim != size:
            raise InputError(f"dynamic_shapes fixes axis {axis} of {name} at {dim}, but its example has {size}.")
        return None
    if is_hint(dim, "AUTO", "DYNAMIC"):
        return dim
    if isinstance(dim, str) and dim.isidentifier():
        return known.setdefault(dim, torch.export.Dim(dim))
    if not isinstance(dim, torch.export.Dim):
        raise InputError(f"dynamic_shapes of {name} has {axis}: {dim!r}; {EXPECTED}.")
    if hasattr(dim, "root"):
        raise InputError(
            f"dynamic_shapes of {name} derives axis {axis} from another ({dim.__name__}). An artifact has no word for "
            "that: make the axis one of its own in the module, or fix it."
        )
    return _one_range(dim, known)


def _one_range(dim: Any, known: dict[str, Any]) -> Any:
    """A name stands for one dimension; where only some of its mentions have a range, it holds for all."""
    before = known.setdefault(dim.__name__, dim)
    default = torch.export.Dim(dim.__name__)
    ranges = [(d.min, d.max) for d in (before, dim, default)]
    if ranges[0] != ranges[1] and ranges[2] not in ranges[:2]:
        raise InputError(
            f"dynamic_shapes has two ranges for {dim.__name__}: {ranges[0][0]} to {ranges[0][1]}, and {ranges[1][0]} "
            f"to {ranges[1][1]}; expected one."
        )
    if ranges[0] == ranges[2]:
        known[dim.__name__] = dim
    return dim


def _check_examples(name: str, x: Tensor, axes: Mapping[int, Any]) -> None:
    for axis, dim in axes.items():
        called = repr(dim) if isinstance(dim, HINT) else dim.__name__
        if x.shape[axis] < 2 and not is_hint(dim, "AUTO"):
            raise InputError(
                f"The example of {name} has size {x.shape[axis]} on its dynamic axis {axis} ({called}); "
                "torch would make it static. Use an example of size 2 or more there."
            )
        low, high = getattr(dim, "min", None), getattr(dim, "max", None)
        if (low is not None and x.shape[axis] < low) or (high is not None and x.shape[axis] > high):
            raise InputError(
                f"The example of {name} has size {x.shape[axis]} on its axis {axis}, outside the range of {called}."
            )
