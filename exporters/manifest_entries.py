"""Entries of the manifest about an export: outputs, axes, evaluation of attention, the requested settings, versions."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, astuple
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.environment import package_versions
from osa_runtime.errors import ExponentRangeError, ExportError, InputError
from osa_runtime.exponential import ExponentialMethod
from osa_runtime.exporters.examples import Examples, made_examples, spec
from osa_runtime.exporters.folding import reason
from osa_runtime.exporters.settings import DEFAULT_OPSET, ExportSettings
from osa_runtime.interface import TensorSpec
from osa_runtime.manifest import AttentionSettings, ExportRecord, Manifest
from osa_runtime.ops import attention
from osa_runtime.ops.interception import intercept
from osa_runtime.ops.scaling import largest_norm, reach
from osa_runtime.sample_inputs import usual_sizes

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


def traced_settings(module: nn.Module, inputs: Sequence[Tensor], settings: ExportSettings) -> AttentionSettings | None:
    """The entry of the manifest, for the formats whose graph is traced from the module itself."""
    calls = _record(module, inputs)
    _check_asked_for(calls, settings)
    return manifest_entry(calls, settings.core)


def manifest_entry(calls: Collection[ExponentialMethod], core: str = "float64") -> AttentionSettings | None:
    """The common evaluation of all calls, field by field, or "mixed"; and the largest ‖S‖ that all can represent."""
    if not calls:
        return None
    values: dict[str, set[Any]] = {name: {asdict(call)[name] for call in calls} for name in asdict(ExponentialMethod())}
    common = {name: found.pop() if len(found) == 1 else "mixed" for name, found in values.items()}
    return AttentionSettings(**common, largest_norm=min(_largest_norm(call) for call in calls), core=core)


def _largest_norm(call: ExponentialMethod) -> float:
    """The largest ‖S‖ that this call can represent, in whichever form it takes."""
    forms = ("dense", "lowrank") if call.form == "auto" else (call.form,)
    squarings = call.squarings if isinstance(call.squarings, int) else -1
    return min(largest_norm(reach(call.approximant, form, False), squarings, False) for form in forms)


def _record(module: nn.Module, inputs: Sequence[Tensor]) -> set[ExponentialMethod]:
    calls: set[ExponentialMethod] = set()

    def record(*arguments: Any) -> Tensor:
        calls.add(arguments[5])
        return attention._apply(*arguments)

    with intercept(record), torch.no_grad():
        module(*inputs)
    return calls


def _check_asked_for(calls: set[ExponentialMethod], settings: ExportSettings) -> None:
    """Refuse settings that could not be applied: they reach layers, but not a call in the user's own code."""
    for call in sorted(calls, key=lambda call: str(astuple(call))):
        for name, wanted in asdict(settings.applied_to(call)).items():
            found = getattr(call, name)
            if wanted != found:
                raise InputError(
                    f"{name}={wanted!r}, but a direct call of orthogonal_attention in your module has {found} "
                    f"and cannot be changed for this format ({settings.format}); set it in the call."
                )


def record(settings: ExportSettings, examples: Examples, target: str | None = None) -> ExportRecord:
    """The requested settings, and the sizes of the examples."""
    return ExportRecord(
        settings.form,
        settings.approximant,
        settings.squarings,
        settings.external_data,
        {name: tuple(x.shape) for name, x in zip(examples.names, examples.tensors, strict=True)},
        {name: int(getattr(dim, "min", 0)) for name, dim in examples.dimensions().items()},
        settings.core,
        target,
        settings.function_classes if settings.functions == "keep" else (),
    )


def recorded_options(manifest: Manifest) -> dict[str, Any]:
    """The options of ``export`` that produced this artifact, or the one that it was quantised from."""
    asked = manifest.export
    return {
        "format": manifest.format,
        "dtype": "fp16" if manifest.dtype == "fp16" else "fp32",
        "functions": list(asked.function_classes) or manifest.functions or "keep",
        "opset": manifest.opset or DEFAULT_OPSET,
        "form": asked.form,
        "approximant": asked.approximant,
        "squarings": asked.squarings,
        "external_data": asked.external_data,
        "core": asked.core,
        "target": asked.target,
    }


def is_static(manifest: Manifest) -> bool:
    return not any(isinstance(axis, str) for spec in manifest.inputs for axis in spec.shape)


def recorded_examples(manifest: Manifest) -> tuple[tuple[Tensor, ...], dict[str, dict[int, Any]]]:
    """Inputs with the sizes of the examples (not necessarily their values), and their dynamic axes."""
    interface, export = manifest.interface, manifest.export
    pairs = (zip(spec.shape, export.examples.get(spec.name, ()), strict=False) for spec in interface.inputs)
    sizes = usual_sizes(interface, 2, 2) | {axis: n for pair in pairs for axis, n in pair if isinstance(axis, str)}
    # Small values, so that no exponent leaves the range of a fixed number of squarings.
    return made_examples(interface, sizes, "scaled 0.1", export.smallest)
