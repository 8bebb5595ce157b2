"""Checks of inputs before a run: names, types, ranks, fixed axes, named axes, values, in this order."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.errors import InputError
from osa_runtime.interface import ANY_DTYPE, ANY_SHAPE, Interface, TensorSpec
from osa_runtime.manifest import Manifest

Array = NDArray[Any]


def check_inputs(feeds: Mapping[str, Any], interface: Interface) -> dict[str, Array]:
    """The feeds as arrays, in the order of the model's inputs; the first problem is an InputError."""
    _check_names(feeds, interface)
    arrays = {spec.name: _array(spec, feeds[spec.name]) for spec in interface.inputs if spec.name in feeds}
    known = [spec for spec in interface.inputs if spec.name in feeds and spec.shape != ANY_SHAPE]
    for spec in known:
        _check_rank(spec, arrays[spec.name])
    for spec in known:
        _check_fixed_axes(spec, arrays[spec.name])
    _check_named_axes(known, arrays, interface)
    check_values(arrays, interface)
    return arrays


def check_values(arrays: Mapping[str, Array], interface: Interface) -> None:
    """Check ids and pixels: an id beyond the table would fail in the middle of a batch, a pixel not at all."""
    for name, limits in interface.values.items():
        array = arrays.get(name)
        if array is None or not array.size:
            continue
        low, high = int(array.min()), int(array.max())
        if low < limits["min"] or high > limits["max"]:
            raise InputError(
                f"Input {name} holds values from {low} to {high}; the model takes {limits['min']} to {limits['max']}."
            )


def check_finite_inputs(arrays: Mapping[str, Array]) -> None:
    for name, array in arrays.items():
        broken = describe_nonfinite(array)
        if broken:
            raise InputError(f"Input {name} holds {broken}; expected finite values only.")


def describe_nonfinite(array: Array) -> str | None:
    """The number of values that are NaN or Inf and the index of the first; None if all are finite."""
    if array.dtype.kind != "f":
        return None
    finite = np.isfinite(array)
    if finite.all():
        return None
    first = tuple(int(i) for i in np.unravel_index(int(finite.argmin()), array.shape))
    return f"{array.size - int(np.count_nonzero(finite))} NaN or Inf of {array.size} values, the first at {first}"


def _check_names(feeds: Mapping[str, Any], interface: Interface) -> None:
    takes = f"the model takes {', '.join(map(str, interface.inputs))}"
    if not isinstance(feeds, Mapping):
        raise InputError(f"Expected a mapping from input names to arrays, got {type(feeds).__name__}; {takes}.")
    names = [spec.name for spec in interface.inputs]
    for name in feeds:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InputError(f"Unexpected input {name!r}; {takes}.{hint}")
    missing = [name for name in names if name not in feeds and name not in interface.optional]
    if missing:
        raise InputError(f"Missing input {', '.join(missing)}; {takes}.")


def _array(spec: TensorSpec, value: Any) -> Array:
    """The value as an array of exactly the right type: a silent cast would hide a mistake or lose digits."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"Input {spec.name} cannot be made an array: {error}; expected {spec}.") from error
    if spec.dtype == ANY_DTYPE:
        return array
    if array.dtype.kind not in "buif":
        raise InputError(f"Input {spec.name} is of type {array.dtype}, not an array of numbers; expected {spec}.")
    if array.dtype != np.dtype(spec.dtype):
        raise InputError(
            f"Input {spec.name} is of type {array.dtype}, expected {spec.dtype}; "
            f"cast it with {spec.name}.astype({spec.dtype!r})."
        )
    return array


def _check_rank(spec: TensorSpec, array: Array) -> None:
    rank = len(spec.shape)
    if array.ndim != rank:
        one_less = array.ndim == rank - 1 and isinstance(spec.shape[0], str)
        hint = f" Add the axis {spec.shape[0]} with {spec.name}[None]." if one_less else ""
        raise InputError(
            f"Input {spec.name} has the shape {array.shape}, of rank {array.ndim}, expected rank {rank}: {spec}.{hint}"
        )


def _check_fixed_axes(spec: TensorSpec, array: Array) -> None:
    for axis, (size, expected) in enumerate(zip(array.shape, spec.shape, strict=True)):
        if isinstance(expected, int) and size != expected:
            raise InputError(
                f"Input {spec.name} has size {size} on axis {axis}, expected {expected}: "
                f"its shape is {array.shape}, the model takes {spec}."
            )


def _check_named_axes(specs: list[TensorSpec], arrays: Mapping[str, Array], interface: Interface) -> None:
    first: dict[str, tuple[str, int]] = {}
    for spec in specs:
        for axis, (size, name) in enumerate(zip(arrays[spec.name].shape, spec.shape, strict=True)):
            if isinstance(name, int):
                continue
            where = f"Input {spec.name} has size {size} on axis {axis} ({name})"
            _check_range(where, size, name, interface)
            owner, expected = first.setdefault(name, (spec.name, size))
            if size != expected:
                raise InputError(f"{where}, but {owner} has {expected} on its axis {name}; expected equal sizes.")


def _check_range(where: str, size: int, axis: str, interface: Interface) -> None:
    if size < interface.least(axis):
        raise InputError(f"{where}, expected at least {interface.least(axis)}.")
    if not interface.takes(axis, size):
        limit = interface.limit(axis)
        raise InputError(f"{where}, expected at most {limit}: the limit with which the model was exported.")


class QuickCheck:
    def __init__(self, interface: Interface) -> None:
        known = all(spec.dtype != ANY_DTYPE and spec.shape != ANY_SHAPE for spec in interface.inputs)
        specs = interface.inputs if known else ()
        self._specs = [(spec.name, np.dtype(spec.dtype), len(spec.shape), spec.shape) for spec in specs]
        self._ranges = {name: (interface.least(name), interface.limit(name)) for name in interface.axes}

    def passes(self, feeds: Mapping[str, Any]) -> bool:
        if type(feeds) is not dict or len(feeds) != len(self._specs):
            return False
        sizes: dict[str, int] = {}
        for name, dtype, rank, expected in self._specs:
            array = feeds.get(name)
            if type(array) is not np.ndarray or array.dtype != dtype or array.ndim != rank:
                return False
            for size, axis in zip(array.shape, expected, strict=True):
                if type(axis) is int:
                    if size != axis:
                        return False
                elif size == 0 or sizes.setdefault(axis, size) != size:  # type: ignore[arg-type]
                    return False
        for name, (least, most) in self._ranges.items():
            size = sizes.get(name, least)
            if size < least or (most is not None and size > most):
                return False
        return bool(self._specs)


class CalibratedRanges:
    """The ranges of the calibration examples; empty for models without static quantisation."""

    def __init__(self, manifest: Manifest | None) -> None:
        described = manifest.quantization if manifest is not None else None
        static = described is not None and described.activations == "static"
        recorded = described.calibration if described is not None and static else None
        self._ranges = {} if recorded is None else {n: r for n, r in recorded.ranges.items() if len(r) == 2}

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def beyond(self, arrays: Mapping[str, Array]) -> list[str]:
        """A sentence for each input with values outside the range of the examples."""
        found = []
        for name, (low, high) in self._ranges.items():
            array = arrays.get(name)
            if array is None or not array.size:
                continue
            least, most = float(array.min()), float(array.max())
            if least < low or most > high:
                found.append(
                    f"Input {name} holds values from {least:.4g} to {most:.4g}, but this model was quantised with "
                    f"examples from {low:.4g} to {high:.4g}: values outside may be cut off. Quantise it with "
                    "examples like this, or use the artifact that it was made from."
                )
        return found
