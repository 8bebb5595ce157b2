"""The manifest's record of an export, and the options that repeat it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from osa_runtime.artifact import Manifest
from osa_runtime.exporters.examples import Examples, made_examples
from osa_runtime.exporters.settings import DEFAULT_OPSET, ExportSettings
from osa_runtime.manifest import ExportRecord
from osa_runtime.sample_inputs import usual_sizes


def record(settings: ExportSettings, examples: Examples) -> ExportRecord:
    """The requested settings, and the sizes of the examples."""
    return ExportRecord(
        settings.form,
        settings.approximant,
        settings.squarings,
        settings.external_data,
        {name: tuple(x.shape) for name, x in zip(examples.names, examples.tensors, strict=True)},
        {name: int(getattr(dim, "min", 0)) for name, dim in examples.dimensions().items()},
    )


def recorded_options(manifest: Manifest) -> dict[str, Any]:
    """The options of ``export`` that produced this artifact, or the one that it was quantised from."""
    asked = manifest.export
    return {
        "format": manifest.format,
        "dtype": "fp16" if manifest.dtype == "fp16" else "fp32",
        "functions": manifest.functions or "keep",
        "opset": manifest.opset or DEFAULT_OPSET,
        "form": asked.form,
        "approximant": asked.approximant,
        "squarings": asked.squarings,
        "external_data": asked.external_data,
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
