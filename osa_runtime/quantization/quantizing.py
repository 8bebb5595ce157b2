"""Quantise an artifact: read, choose, rewrite, check, compare with the source, write."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from osa_runtime.artifact import MANIFEST_FILE, Artifact, describe_files
from osa_runtime.atomic import atomic_folder, check_apart, check_replaceable
from osa_runtime.environment import package_versions
from osa_runtime.errors import InputError
from osa_runtime.manifest import AttentionCall, Manifest, Quantization
from osa_runtime.onnx_files import LARGEST_SINGLE_FILE, weight_bytes, weight_files
from osa_runtime.onnx_layers import with_projections
from osa_runtime.parity.comparison import Metrics
from osa_runtime.quantization.activations import (
    Calibration,
    Ranges,
    check_ranges,
    measure_ranges,
    quantize_dynamic,
    quantize_static,
    read_calibration,
)
from osa_runtime.quantization.checks import check_file, check_rewriting, deviation, random_feeds
from osa_runtime.quantization.weights import Selection, carry_nan, quantize_products, quantize_tables, select
from osa_runtime.runtime.session import load
from osa_runtime.steps import Listener, Progress


@dataclass(frozen=True)
class Quantized:
    """The new artifact and its source. ``deviations`` are by output."""

    artifact: Artifact
    source: Artifact
    selection: Selection
    deviations: dict[str, Metrics]
    measured_on: str

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of the source's files, and of the new ones."""
        before, after = (
            sum((artifact.folder / name).stat().st_size for name in artifact.manifest.files)
            for artifact in (self.source, self.artifact)
        )
        return before, after


def quantize(
    artifact: str | Path,
    out: str | Path,
    *,
    weights: str = "int8",
    activations: str = "none",
    calibration: str | Path | None = None,
    ranges: Mapping[str, Sequence[float]] | None = None,
    keep: Sequence[str] = (),
    replace: bool = False,
    progress: Listener | None = None,
) -> Quantized:
    """Write the ONNX artifact with 8-bit weights to the folder ``out``; orthogonal attention stays in float32.

    Args:
        activations: "none" computes in float32; "dynamic" and "static" multiply in 8 bits, with ranges that are
            measured in every run, or once, on ``calibration``.
        calibration: an .npz with examples of every input, on which the deviation is measured, too.
        ranges: the ranges of the activations in the manifest of a static artifact, to make it again without its
            examples.
        keep: parts whose weights stay in float32, such as "head" or "stack.blocks.*.mlp.expand".
    """
    settings = QuantizeSettings(weights, activations, tuple(keep))
    source = check_source(artifact, out, settings, calibration if ranges is None else ranges, replace=replace)
    steps = Progress(progress)
    examples = None
    if calibration is not None:
        with steps.step("read the calibration"):
            examples = read_calibration(Path(calibration), source)
    with steps.step("read the model"):
        before, attentions = with_projections(onnx.load(source.model_path), source.manifest.attentions)
        selection = select(before, attentions, settings.keep)
        if examples is not None:  # their answers must be finite: NaN has no range
            with load(source.folder, cache=False) as session:
                for feeds in examples.feeds:
                    session.run(feeds, check_finite=True)
    with steps.step("quantise"):
        known = _ranges(before, selection, settings, examples, ranges)
        after = _rewritten(before, selection, settings, known)
        check_rewriting(before, after, selection, attentions)
    with atomic_folder(out, replace=replace, marker=MANIFEST_FILE) as folder:
        with steps.step("write the model"):
            description = _description(source, selection, settings, examples, known)
            manifest = _write(after, folder, source, attentions, description, settings)
        with steps.step("check the model"):
            check_file(folder / source.model_path.name)
        with steps.step("compare with the source"):
            deviations = _compare(folder, source, examples)
            found = {name: {"max_rel": m.max_rel, "rms": m.rms, "top1": m.top1} for name, m in deviations.items()}
            _write_manifest(
                folder, dataclasses.replace(manifest, quantization=dataclasses.replace(description, deviation=found))
            )
    measured_on = f"{examples.examples} examples of the calibration" if examples else "random inputs"
    return Quantized(Artifact.open(out), source, selection, deviations, measured_on)


def check_source(
    artifact: str | Path, out: str | Path, settings: QuantizeSettings, calibration: object, *, replace: bool
) -> Artifact:
    """Refuse what can be refused before any work is done."""
    source = Artifact.open(artifact)
    manifest = source.manifest
    if manifest.format != "onnx":
        raise InputError(
            f"{artifact} holds a {manifest.format} model; only ONNX is quantised. "
            "Export it with `osa export --format onnx`."
        )
    if manifest.quantization:
        raise InputError(f"{artifact} is quantised already; quantise the fp32 artifact that it was made from.")
    if manifest.dtype != "fp32":
        raise InputError(
            f"{artifact} is in {manifest.dtype}, expected fp32: weights that were rounded once are not rounded again. "
            "Export it with `osa export --dtype fp32`, and quantise that."
        )
    if settings.activations == "static" and calibration is None:
        inputs = ", ".join(f"{spec.name}=…" for spec in manifest.inputs)
        raise InputError(
            "activations='static' needs calibration=FILE.npz, a few hundred examples to take the ranges from: "
            f"numpy.savez('calibration', {inputs}). Without examples, use activations='dynamic'."
        )
    source.check_files()
    check_apart(out, source.folder)
    check_replaceable(Path(out), replace=replace, marker=MANIFEST_FILE)
    return source


def _ranges(
    model: onnx.ModelProto,
    selection: Selection,
    settings: QuantizeSettings,
    examples: Calibration | None,
    given: Mapping[str, Sequence[float]] | None,
) -> Ranges:
    """The ranges of the activations, if the artifact holds them."""
    if settings.activations != "static":
        return {}
    if given is not None:
        return check_ranges(model, selection.products, given)
    assert examples is not None
    return measure_ranges(model, selection.products, examples.feeds)


def _rewritten(
    model: onnx.ModelProto, selection: Selection, settings: QuantizeSettings, ranges: Ranges
) -> onnx.ModelProto:
    if settings.activations == "dynamic":
        result = quantize_dynamic(model, selection.products)
        carry_nan(result, model, selection.products)
    elif settings.activations == "static":
        result = quantize_static(model, selection.products, ranges)
        carry_nan(result, model, selection.products)
    else:
        result = copy.deepcopy(model)
        quantize_products(result, selection.products)
    quantize_tables(result, selection.tables)
    return result


def _write(
    model: onnx.ModelProto,
    folder: Path,
    source: Artifact,
    attentions: tuple[AttentionCall, ...],
    description: Quantization,
    settings: QuantizeSettings,
) -> Manifest:
    path = folder / source.model_path.name
    outside = bool(weight_files(source.model_path))
    if outside or weight_bytes(model) > LARGEST_SINGLE_FILE:
        onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")
    else:
        onnx.save(model, path)
    files = describe_files(folder)
    manifest = dataclasses.replace(
        source.manifest, dtype=settings.dtype, files=files, attentions=attentions, quantization=description
    )
    return _write_manifest(folder, manifest)


def _write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    (folder / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def _compare(folder: Path, source: Artifact, examples: Calibration | None) -> dict[str, Metrics]:
    """Compare at every size of the axes, so that an axis that became fixed is found."""
    with load(folder, cache=False) as quantized, load(source.folder, cache=False) as original:
        found = deviation(quantized, original, random_feeds(source.manifest), given=False)
        return found if examples is None else deviation(quantized, original, examples.feeds, given=True)


def _description(
    source: Artifact, selection: Selection, settings: QuantizeSettings, examples: Calibration | None, ranges: Ranges
) -> Quantization:
    return Quantization(
        settings.weights,
        settings.activations,
        settings.weight_bits,
        len(selection.products) + len(selection.tables),
        tuple(selection.kept),
        {name: entry.sha256 for name, entry in source.manifest.files.items()},
        package_versions(("onnx", "onnxruntime", "onnxruntime-gpu")),
        None if examples is None else examples.describe(),
        {name: tuple(limits) for name, limits in ranges.items()},
    )


WEIGHTS = ("int8",)
ACTIVATIONS = ("none", "dynamic", "static")


@dataclass(frozen=True)
class QuantizeSettings:
    """Settings of a quantisation; ``keep`` names the parts, with wildcards * and ?, whose weights stay in float32."""

    weights: str = "int8"
    activations: str = "none"
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _one_of("weights", self.weights, WEIGHTS)
        _one_of("activations", self.activations, ACTIVATIONS)

    @property
    def dtype(self) -> str:
        """The type in the manifest and the table of tolerances: 8-bit weights, with or without 8-bit activations."""
        return "w8" if self.activations == "none" else "w8a8"

    @property
    def weight_bits(self) -> int:
        """7 bits where products are in 8 bits: a CPU without VNNI adds two of them in 16 bits, and saturates silently.

        With weights of 7 bits it cannot: 2 · 255 · 64 < 2¹⁵. So the answers do not depend on the CPU.
        """
        return 8 if self.activations == "none" else 7


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name}={value!r}: expected {' or '.join(choices)}.")
