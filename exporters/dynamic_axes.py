"""``dynamic_shapes`` in every spelling that torch.export takes, as one dimension or hint for each axis."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.errors import InputError
from osa_runtime.exporters.folding import errors_naming_layers
from osa_runtime.ops.interception import intercept
from osa_runtime.steps import quiet

Axes = tuple[dict[int, Any], ...]

HINT: Any = type(torch.export.Dim.AUTO)
EXPECTED = (
    "expected {input: {axis: name}}, as in {'x': {0: 'batch'}}, or the same by position; a dimension is a name without "
    "spaces, a torch.export.Dim, Dim.AUTO, Dim.DYNAMIC, Dim.STATIC, the size itself, or None"
)


def spelled_out(module: nn.Module, args: Sequence[Any], shapes: Any) -> Any:
    """Resolve ShapesCollection and AdditionalInputs, which know tensors by identity, before any tensor is copied."""
    if not isinstance(shapes, (torch.export.ShapesCollection, torch.export.AdditionalInputs)):
        return shapes
    try:
        return shapes.dynamic_shapes(module, tuple(args))
    except (ValueError, TypeError) as error:
        raise InputError(f"dynamic_shapes does not fit the example inputs: {error}") from error


def read_shapes(module: nn.Module, names: Sequence[str], args: Sequence[Tensor], shapes: Any) -> Axes:
    """The dynamic axes of each input: torch.export.Dim for named axes, Dim.AUTO and Dim.DYNAMIC as they are."""
    by_input = _by_input(module, names, shapes)
    known: dict[str, Any] = {}
    read = [_axes(name, x, spec, known) for name, x, spec in zip(names, args, by_input, strict=True)]
    # By name once more: only the last mention of a dimension may have its range.
    found = tuple(
        {i: dim if isinstance(dim, HINT) else known[dim.__name__] for i, dim in axes.items()} for axes in read
    )
    for name, x, axes in zip(names, args, found, strict=True):
        _check_examples(name, x, axes)
    return found


def as_torch_takes(module: nn.Module, axes: Axes) -> tuple[Any, ...]:
    """One entry for each parameter of forward; that of ``*inputs`` holds all of them."""
    place, _ = _rest(module)
    return axes if place >= len(axes) else (*axes[:place], axes[place:])


def _rest(module: nn.Module) -> tuple[int, str]:
    """The place and the name of ``*inputs`` among the parameters of forward; behind them all if it has none."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    found = ((i, p.name) for i, p in enumerate(parameters) if p.kind is p.VAR_POSITIONAL)
    return next(found, (len(parameters), ""))


def is_hint(dim: Any, *kinds: str) -> bool:
    return isinstance(dim, HINT) and dim.type.name in kinds


def _by_input(module: nn.Module, names: Sequence[str], shapes: Any) -> Sequence[Any]:
    if shapes is None:
        return [None] * len(names)
    if isinstance(shapes, Mapping):
        return _by_name(module, names, shapes)
    if not isinstance(shapes, (tuple, list)):
        raise InputError(f"dynamic_shapes={shapes!r}: {EXPECTED}.")
    shapes = _each_of_rest(module, names, shapes)
    if len(shapes) not in (0, len(names)):
        raise InputError(f"dynamic_shapes has {len(shapes)} entries for the {len(names)} inputs {list(names)}.")
    return shapes or [None] * len(names)


def _each_of_rest(module: nn.Module, names: Sequence[str], shapes: Sequence[Any]) -> Sequence[Any]:
    """The entries with those of ``*inputs``, for which torch.export takes one that holds them, each on its own."""
    place, _ = _rest(module)
    if place != len(shapes) - 1:
        return shapes
    held = [None] * (len(names) - place) if shapes[place] is None else shapes[place]
    if not isinstance(held, (tuple, list)) or place + len(held) != len(names):
        return shapes
    # A single one may have its own dimensions there, as any input may.
    holds = len(names) > len(shapes) or any(isinstance(one, (Mapping, tuple, list)) for one in held)
    return (*shapes[:place], *held) if holds else shapes


def _by_name(module: nn.Module, names: Sequence[str], shapes: Mapping[Any, Any]) -> Sequence[Any]:
    """The shapes by input name; as in torch.export, the names may also be those of forward's parameters."""
    if len(names) == 1 and shapes and all(type(key) is int for key in shapes):
        return [shapes]
    place, rest = _rest(module)
    if rest in shapes and rest not in names:
        others = {key: spec for key, spec in shapes.items() if key != rest}
        return _by_input(module, names, [*_by_name(module, names[:place], others), shapes[rest]])
    parameters = inspect.signature(module.forward).parameters.values()
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
    """The dimension of an axis, None if it is fixed."""
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
            f"dynamic_shapes of {name} derives axis {axis} from another ({dim.__name__}). A manifest cannot record "
            "that: make the axis independent in the module, or fix it."
        )
    return _one_range(dim, known)


def _one_range(dim: Any, known: dict[str, Any]) -> Any:
    """One range for each name: where only some of its mentions have a range, it holds for all."""
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


Place = tuple[int, int]  # an input and its axis
Range = tuple[int, int | None]

TAKEN_FOR_CONSTANTS = 2  # the smallest size that torch assumes by default


def resolve(module: nn.Module, names: Sequence[str], args: tuple[Tensor, ...], axes: Axes) -> Axes:
    """The axes with a named torch.export.Dim in place of each hint; axes that became static are left out."""
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
    """The axes that share a symbol in torch's trace, and the range of each symbol."""

    def capture() -> torch.export.ExportedProgram:
        torch.compiler.reset()  # an earlier export may have left its sizes as guards
        return torch.export.export(module, args, dynamic_shapes=as_torch_takes(module, axes))

    with intercept(_stand_in), torch.no_grad(), quiet(), errors_naming_layers(module, capture):
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
    """A replacement for orthogonal attention that relates the same sizes, without its branches and loops."""
    factor = scale[..., None, None] if isinstance(scale, Tensor) else scale
    weight = (factor * (q * k).sum(-1, keepdim=True)).to(v.dtype)
    return v + (weight if mask is None else weight.masked_fill(~mask[..., None], 0.0))


def _is_fixed(size: Any) -> bool:
    return isinstance(size, int) or bool(size.node.expr.is_Integer)


def _symbol(name: str, axis: int, size: Any) -> str:
    if not size.node.expr.is_Symbol:
        raise InputError(
            f"Axis {axis} of {name} depends on another one ({size}), which a manifest cannot record; fix it."
        )
    return str(size)


def _range(limits: Any) -> Range:
    return int(limits.lower), int(limits.upper) if limits.upper.is_Integer else None


def _name(places: Sequence[Place], names: Sequence[str], taken: set[str]) -> str:
    """``batch`` for the first axis of the first input, as everywhere in an artifact; others are named by position."""
    index, axis = places[0]
    name = "batch" if (0, 0) in places else f"{names[index]}_{axis}"
    while name in taken:
        name += "_"
    return name


def _least(module: nn.Module, args: tuple[Tensor, ...], places: Sequence[Place], least: int) -> int | None:
    """The smallest size: 1 if the module accepts a single row, which torch does not try by itself."""
    if least > TAKEN_FOR_CONSTANTS:
        return least
    single = list(args)
    for index, axis in places:
        single[index] = single[index].narrow(axis, 0, 1)
    try:
        with torch.no_grad():
            module(*single)
    except Exception:  # noqa: BLE001 - the module may raise anything
        return TAKEN_FOR_CONSTANTS
    return None
