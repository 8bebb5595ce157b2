"""What ``dynamic_shapes`` may say, and the messages for what it may not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from osa_runtime.errors import InputError


def check_shapes(axes: Any, inputs: tuple[str, ...]) -> None:
    """{input: {axis: name or Dim}}, from the user and therefore anything."""
    expected = "expected {input: {axis: name}}, as in {'x': {0: 'batch'}}"
    if axes is not None and not isinstance(axes, Mapping):
        raise InputError(f"dynamic_shapes is {axes!r}, {expected}.")
    unknown = sorted(map(str, set(axes or {}) - set(inputs)))
    if unknown:
        raise InputError(f"dynamic_shapes names the inputs {unknown}, but the inputs are {list(inputs)}.")
    for name, dynamic in (axes or {}).items():
        if not isinstance(dynamic, Mapping):
            raise InputError(f"dynamic_shapes of {name} is {dynamic!r}, {expected}.")
        for axis, dim in dynamic.items():
            named = dim.isidentifier() if isinstance(dim, str) else isinstance(dim, torch.export.Dim)
            if type(axis) is not int or not named:
                raise InputError(
                    f"dynamic_shapes of {name} has {axis!r}: {dim!r}; expected the number of an axis, and for it a "
                    "name without spaces or a torch.export.Dim. Leave out the axes that are fixed."
                )


def check_axes(name: str, x: Tensor, axes: dict[int, Any]) -> None:
    for axis, dim in axes.items():
        if not 0 <= axis < x.dim():
            raise InputError(f"{name} has {x.dim()} axes, but axis {axis} ({dim.__name__}) is declared dynamic.")
        if x.shape[axis] < 2:
            raise InputError(
                f"The example of {name} has size {x.shape[axis]} on its dynamic axis {axis} ({dim.__name__}); "
                "torch would make it static. Use an example of size 2 or more there."
            )
