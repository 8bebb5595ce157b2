"""Dim.AUTO and Dim.DYNAMIC: torch finds out which axes can be dynamic, which are equal, and what range they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.errors import InputError
from osa_runtime.exporters.blame import blame
from osa_runtime.exporters.dynamic_axes import HINT, Axes, as_torch_takes, is_hint
from osa_runtime.exporters.quiet import quiet
from osa_runtime.ops.interception import intercept

Place = tuple[int, int]  # an input and its axis
Range = tuple[int, int | None]

TAKEN_FOR_CONSTANTS = 2  # torch counts sizes from here on unless it is told otherwise


def resolve(module: nn.Module, names: Sequence[str], args: tuple[Tensor, ...], axes: Axes) -> Axes:
    """The axes with a named torch.export.Dim in place of each hint; what became static is left out."""
    if not any(isinstance(dim, HINT) for dims in axes for dim in dims.values()):
        return axes
    groups, ranges = _trace(module, names, args, axes)
    taken = {dim.__name__ for dims in axes for dim in dims.values() if not isinstance(dim, HINT)}
    found: list[dict[int, Any]] = [{} for _ in args]
    for symbol, places in groups.items():
        dim = next((axes[i][axis] for i, axis in places if not isinstance(axes[i][axis], HINT)), None)
        if dim is None:
            least, most = ranges[symbol]
            dim = torch.export.Dim(_name(places, names, taken), min=_least(module, args, places, least), max=most)
            taken.add(dim.__name__)
        for index, axis in places:
            found[index][axis] = dim
    return tuple(dict(sorted(dims.items())) for dims in found)


def _trace(
    module: nn.Module, names: Sequence[str], args: tuple[Tensor, ...], axes: Axes
) -> tuple[dict[str, list[Place]], dict[str, Range]]:
    """Which axes torch gave the same symbol, and the range of each symbol."""

    def capture() -> torch.export.ExportedProgram:
        torch.compiler.reset()  # an earlier export may have left its sizes as guards
        return torch.export.export(module, args, dynamic_shapes=as_torch_takes(module, axes))

    with intercept(_stand_in), torch.no_grad(), quiet(), blame(module, capture):
        program = capture()
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    groups: dict[str, list[Place]] = {}
    for index, (name, placeholder) in enumerate(zip(names, program.graph_signature.user_inputs, strict=True)):
        for axis, dim in axes[index].items():
            size = values[placeholder].shape[axis]
            if not _is_fixed(size):
                groups.setdefault(_symbol(name, axis, size), []).append((index, axis))
            elif not is_hint(dim, "AUTO"):
                raise InputError(f"Axis {axis} of {name} was declared dynamic, but the module fixes it at {size}.")
    return groups, {str(symbol): _range(limits) for symbol, limits in program.range_constraints.items()}


def _stand_in(q: Tensor, k: Tensor, v: Tensor, scale: float | Tensor, mask: Tensor | None, *_: object) -> Tensor:
    """It ties the sizes together that orthogonal attention ties together, without its branches and loops."""
    factor = scale[..., None, None] if isinstance(scale, Tensor) else scale
    weight = (factor * (q * k).sum(-1, keepdim=True)).to(v.dtype)
    return v + (weight if mask is None else weight.masked_fill(~mask[..., None], 0.0))


def _is_fixed(size: Any) -> bool:
    return isinstance(size, int) or bool(size.node.expr.is_Integer)


def _symbol(name: str, axis: int, size: Any) -> str:
    if not size.node.expr.is_Symbol:
        raise InputError(
            f"Axis {axis} of {name} depends on another one ({size}), for which an artifact has no word; fix it."
        )
    return str(size)


def _range(limits: Any) -> Range:
    return int(limits.lower), int(limits.upper) if limits.upper.is_Integer else None


def _name(places: Sequence[Place], names: Sequence[str], taken: set[str]) -> str:
    """The first axis of the first input counts rows, as everywhere in an artifact; others are called by their place."""
    index, axis = places[0]
    name = "batch" if (0, 0) in places else f"{names[index]}_{axis}"
    while name in taken:
        name += "_"
    return name


def _least(module: nn.Module, args: tuple[Tensor, ...], places: Sequence[Place], least: int) -> int | None:
    """Whether the module takes a single row, which torch does not try by itself."""
    if least > TAKEN_FOR_CONSTANTS:
        return least
    single = list(args)
    for index, axis in places:
        single[index] = single[index].narrow(axis, 0, 1)
    try:
        with torch.no_grad():
            module(*single)
    except Exception:  # noqa: BLE001 - whatever the module does not like about it
        return TAKEN_FOR_CONSTANTS
    return None
