"""Entries of the manifest about a module: its outputs, the ranges of its axes, the versions of packages."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from osa_runtime.artifact import TensorSpec
from osa_runtime.environment import package_versions
from osa_runtime.errors import ExponentRangeError, ExportError, InputError
from osa_runtime.exporters.capturing import reason
from osa_runtime.exporters.examples import Examples, spec

PACKAGES = (
    "osa-runtime",
    "torch",
    "onnx",
    "onnxscript",
    "onnx-ir",
    "onnxruntime",
    "onnxruntime-gpu",
    "numpy",
    "safetensors",
)


def describe_outputs(module: nn.Module, examples: Examples, names: Sequence[str] | None) -> tuple[TensorSpec, ...]:
    """Run eager; an output axis is dynamic, and named, where its size changes with a dynamic axis of the inputs."""
    outputs = _tensors(module(*examples.tensors))
    found = list(names) if names is not None else _default_names(len(outputs))
    if len(found) != len(outputs) or len(set(found)) != len(found):
        raise InputError(f"Expected {len(outputs)} distinct output names, got {found}.")
    axes: list[dict[int, str]] = [{} for _ in outputs]
    for (name, size), inputs in examples.other_sizes():
        resized = _at_size(module, examples, (name, size), inputs)
        for known, before, after in zip(axes, outputs, resized, strict=True):
            for axis, (old, new) in enumerate(zip(before.shape, after.shape, strict=True)):
                if old != new:
                    known[axis] = name if new == size else f"f({name})"
    return tuple(spec(name, x, known) for name, x, known in zip(found, outputs, axes, strict=True))


def _at_size(module: nn.Module, examples: Examples, axis: tuple[str, int], inputs: Sequence[Tensor]) -> list[Tensor]:
    try:
        return _tensors(module(*inputs))
    except ExponentRangeError:
        raise  # about values, and its message says so
    except Exception as error:
        raise examples.beyond(axis, f"fails ({reason(error)})") from error


@contextlib.contextmanager
def squarings_named(squarings: str | int | None) -> Iterator[None]:
    """Name the setting in the error: an exponent out of range may be due to it rather than to the module."""
    try:
        yield
    except ExponentRangeError as error:
        if not isinstance(squarings, int):
            raise
        raise ExponentRangeError(f"squarings={squarings} does not suffice for the example inputs: {error}") from error


def _tensors(outputs: Any) -> list[Tensor]:
    found = [outputs] if isinstance(outputs, Tensor) else outputs
    if not isinstance(found, (tuple, list)) or not found or not all(isinstance(x, Tensor) for x in found):
        raise ExportError(
            f"forward returns {type(outputs).__name__}; only a tensor or a tuple of tensors can be exported. "
            "Wrap the module in one that returns those."
        )
    return list(found)


def _default_names(count: int) -> list[str]:
    return ["output"] if count == 1 else [f"output_{i}" for i in range(count)]


def axis_ranges(examples: Examples) -> dict[str, dict[str, int]]:
    """The smallest and the largest size of each dynamic axis that is limited."""
    ranges: dict[str, dict[str, int]] = {}
    for name, dim in examples.dimensions().items():
        low, high = int(getattr(dim, "min", 0) or 0), examples.high(dim)
        found = ({"min": low} if low > 1 else {}) | ({"max": high} if high < examples.UNBOUNDED else {})
        if found:
            ranges[name] = found
    return ranges


def versions() -> dict[str, str]:
    """The versions of the packages involved in the export."""
    return {"python": platform.python_version()} | package_versions(PACKAGES)
