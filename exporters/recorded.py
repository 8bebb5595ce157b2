"""What a manifest records of an export, and how to ask for the same export again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from osa_runtime.artifact import Manifest
from osa_runtime.exporters.examples import DTYPES, Examples
from osa_runtime.exporters.settings import DEFAULT_OPSET, ExportSettings


def record(settings: ExportSettings, examples: Examples) -> dict[str, Any]:
    """What the other fields of the manifest do not say: the settings as they were asked for, and sizes of examples."""
    return {
        "form": settings.form,
        "approximant": settings.approximant,
        "squarings": settings.squarings,
        "external_data": settings.external_data,
        "examples": {name: list(x.shape) for name, x in zip(examples.names, examples.tensors, strict=True)},
        "smallest": {name: int(getattr(dim, "min", 0)) for name, dim in examples.dimensions().items()},
    }


def recorded_options(manifest: Manifest) -> dict[str, Any]:
    """The options of ``export`` that gave this artifact, or the one that it was quantised from."""
    options: dict[str, Any] = {
        "format": manifest.format,
        "dtype": "fp16" if manifest.dtype == "fp16" else "fp32",
        "functions": manifest.functions or "keep",
        "opset": manifest.opset or DEFAULT_OPSET,
    }
    return (
        options
        | {name: manifest.export.get(name) for name in ("form", "approximant", "squarings")}
        | {"external_data": bool(manifest.export.get("external_data"))}
    )


def is_static(manifest: Manifest) -> bool:
    return not any(isinstance(axis, str) for spec in manifest.inputs for axis in spec.shape)


def recorded_examples(manifest: Manifest) -> tuple[tuple[Tensor, ...], dict[str, dict[int, Any]]]:
    """Inputs of the sizes of the examples, which need not be the examples themselves, and their dynamic axes."""
    sizes = manifest.export.get("examples", {})
    smallest = manifest.export.get("smallest", {})
    dims: dict[str, Any] = {}
    examples, axes = [], {}
    generator = torch.Generator().manual_seed(0)
    types = {name: dtype for dtype, name in DTYPES.items()}
    for spec in manifest.inputs:
        shape = sizes.get(spec.name) or [axis if isinstance(axis, int) else 2 for axis in spec.shape]
        dtype = torch.float32 if spec.dtype == "float16" else types[spec.dtype]
        low = manifest.values.get(spec.name, {}).get("min", 0)
        plain = torch.full(shape, low, dtype=dtype)
        # Small, so that no exponent leaves the range of a fixed number of squarings.
        examples.append(
            0.1 * torch.randn(shape, generator=generator, dtype=dtype) if dtype.is_floating_point else plain
        )
        named = {index: axis for index, axis in enumerate(spec.shape) if isinstance(axis, str)}
        for axis in named.values():
            largest = manifest.axes.get(axis, {}).get("max")
            dims.setdefault(axis, torch.export.Dim(axis, min=smallest.get(axis), max=largest))
        axes[spec.name] = {index: dims[axis] for index, axis in named.items()}
    return tuple(examples), axes
