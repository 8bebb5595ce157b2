"""The manifest of an exported folder: the description of its model, and the checks of all of its fields.

A manifest may come from anywhere, and other modules rely on it without further checks.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from osa_runtime.errors import ArtifactError
from osa_runtime.exponential import CORES, ExponentialMethod
from osa_runtime.formats import FORMATS
from osa_runtime.interface import Interface, Roles, TensorSpec, leading_axis, mask_candidates
from osa_runtime.pixels import Standardisation
from osa_runtime.typed_json import decode

VERSION = 1
LARGEST = 2**63 - 1  # of an int64
TENSOR_TYPES = ("float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
DTYPES = {"onnx": ("fp32", "fp16", "w8", "w8a8")}  # of the model; other formats have the first two


@dataclass(frozen=True)
class AttentionSettings:
    """The evaluation that all attention layers share, "mixed" where they differ, and the largest ‖S‖ for all."""

    form: str = "auto"
    approximant: str = "taylor"
    squarings: str | int = "auto"
    largest_norm: float | None = None
    core: str = "float64"

    @property
    def evaluation(self) -> ExponentialMethod:
        return ExponentialMethod.recorded(dataclasses.asdict(self))


@dataclass(frozen=True)
class AttentionCall:
    """The names of one call of orthogonal attention in an ONNX graph: of q, k, v, scale and mask, and of its outputs.

    ``scale`` holds the numbers of a constant scale, which inlining may fold into other constants.
    """

    name: str
    inputs: tuple[str, ...]
    output: str
    squarings: str | None = None
    scale: Any = None


@dataclass(frozen=True)
class StoredFile:
    size: int
    sha256: str


@dataclass(frozen=True)
class CalibrationRecord:
    """The examples that static ranges were taken from, and the range of each input in them."""

    examples: int
    sha256: str
    ranges: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Quantization:
    """The record of a quantisation: the stored weights, the method, and the source."""

    weights: str
    activations: str
    weight_bits: int = 8
    quantized: int = 0
    kept: tuple[str, ...] = ()
    source: dict[str, str] = field(default_factory=dict)  # the hash of each file that it was made from
    versions: dict[str, str] = field(default_factory=dict)
    calibration: CalibrationRecord | None = None
    activation_ranges: dict[str, tuple[float, ...]] = field(default_factory=dict)
    deviation: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportRecord:
    """Requested settings that are in no other field, so that the export can be repeated; None is the module's own."""

    form: str | None = None
    approximant: str | None = None
    squarings: str | int | None = None
    external_data: bool = False
    examples: dict[str, tuple[int, ...]] = field(default_factory=dict)
    smallest: dict[str, int] = field(default_factory=dict)
    core: str = "float64"
    target: str | None = None
    function_classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """The description of an exported model."""

    format: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: int
    axes: dict[str, dict[str, int]] = field(default_factory=dict)  # the range of each dynamic axis that has one
    values: dict[str, dict[str, int]] = field(default_factory=dict)  # the range of the ids that an input may hold
    preprocessing: dict[str, dict[str, Any]] = field(default_factory=dict)  # of pixels, for inputs that are images
    dtype: str = "fp32"
    depth: int | None = None  # the number of matrices in sequence, over which rounding adds up
    opset: int | None = None
    functions: str | None = None
    osa: AttentionSettings | None = None
    attentions: tuple[AttentionCall, ...] = ()
    files: dict[str, StoredFile] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    quantization: Quantization | None = None
    roles: Roles | None = None  # None in manifests of earlier releases, which did not find them
    class_names: tuple[str, ...] = ()  # of the last axis of the logits, for models that classify
    export: ExportRecord = ExportRecord()

    def to_json(self) -> str:
        return json.dumps({"version": VERSION} | dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"

    @cached_property
    def interface(self) -> Interface:
        pixels = {name: Standardisation.from_dict(fields) for name, fields in self.preprocessing.items()}
        return Interface(self.inputs, self.outputs, self.axes, self.values, pixels, self.roles)

    def configuration_parameters(self) -> dict[str, str]:
        """Information for clients in model configurations, whose parameters are strings."""
        found = {f"preprocessing.{name}": json.dumps(fields) for name, fields in self.preprocessing.items()}
        return found | ({"class_names": json.dumps(self.class_names, ensure_ascii=False)} if self.class_names else {})

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"{where} is not valid JSON ({error}); export the model again.") from error
        if not isinstance(fields, dict) or fields.pop("version", None) != VERSION:
            raise ArtifactError(f"{where} is not a manifest of version {VERSION}; export the model again.")
        # Earlier releases wrote an empty object for a missing entry.
        present = {name: value for name, value in fields.items() if value != {}}
        try:
            manifest = decode(cls, present, "the manifest", whole=False)
            check_manifest(manifest)
        except (TypeError, KeyError, ValueError, OverflowError, RecursionError) as error:
            raise ArtifactError(f"{where} lacks or misspells a field ({error}); export the model again.") from error
        return manifest


def check_manifest(manifest: Manifest) -> None:
    """Raise ValueError for the first field whose value cannot be used; the types are those of the fields."""
    if manifest.format not in FORMATS:
        raise ValueError(f"format is {manifest.format!r}, expected {', '.join(FORMATS)}")
    known = DTYPES.get(manifest.format, DTYPES["onnx"][:2])
    if manifest.dtype not in known:
        raise ValueError(f"dtype is {manifest.dtype!r}, expected one of {', '.join(known)}")
    if manifest.export.core not in CORES or (manifest.osa is not None and manifest.osa.core not in CORES):
        raise ValueError(f"core is {manifest.export.core!r}, expected one of {', '.join(CORES)}")
    _check_numbers(manifest)
    _check_specs("inputs", manifest.inputs)
    _check_specs("outputs", manifest.outputs)
    for name, limits in manifest.axes.items():
        if not set(limits) <= {"min", "max"} or limits.get("min", -math.inf) > limits.get("max", math.inf):
            raise ValueError(f"axes of {name!r} is {limits}, expected a range, as {{'min': 1, 'max': 9}}")
    for call in manifest.attentions:
        if len(call.inputs) not in (4, 5):
            raise ValueError(f"the attention {call.name!r} has {len(call.inputs)} inputs, expected 4 or 5")
        np.asarray(0.0 if call.scale is None else call.scale, np.float64)  # raises ValueError unless it is numbers
    check_value_ranges(manifest.values, manifest.inputs)
    _check_roles(manifest.roles, manifest.inputs)
    pixels = {name: Standardisation.from_dict(fields) for name, fields in manifest.preprocessing.items()}
    check_preprocessing(pixels, manifest.inputs)
    check_class_names(manifest.class_names, manifest.outputs)


def _check_numbers(manifest: Manifest) -> None:
    """Check that sizes and counts are 0 or more and fit into 64 bits, and that norms and ranges are finite."""
    axes = [axis for spec in (*manifest.inputs, *manifest.outputs) for axis in spec.shape]
    counts = [manifest.parameters, manifest.depth, manifest.opset, *axes, *(f.size for f in manifest.files.values())]
    counts += [size for shape in manifest.export.examples.values() for size in shape]
    counts += manifest.export.smallest.values()
    named = [*manifest.axes.values(), *manifest.values.values()]
    ranges: list[float] = [limit for limits in named for limit in limits.values()]
    if manifest.osa is not None:
        counts.append(manifest.osa.squarings)
        ranges += [] if manifest.osa.largest_norm is None else [manifest.osa.largest_norm]
    if (small := manifest.quantization) is not None:
        counts += [small.weight_bits, small.quantized] + ([small.calibration.examples] if small.calibration else [])
        known = [small.activation_ranges, small.calibration.ranges if small.calibration else {}]
        ranges += [limit for found in known for limits in found.values() for limit in limits]
    for number in counts:
        if isinstance(number, int) and not 0 <= number <= LARGEST:
            raise ValueError(f"a size or count is {number}, expected 0 or more, and no more than 64 bits hold")
    for end in ranges:
        if not abs(end) <= LARGEST:
            raise ValueError(f"a range or norm is {end}, expected a finite number")
    if manifest.osa is not None and manifest.osa.largest_norm is not None and manifest.osa.largest_norm <= 0:
        raise ValueError(f"osa.largest_norm is {manifest.osa.largest_norm}, expected a number above 0")


def check_value_ranges(ranges: object, inputs: Sequence[TensorSpec]) -> None:
    """Check the ranges of inputs that hold ids. Raises ValueError."""
    if not isinstance(ranges, Mapping):
        raise ValueError("values must map names of inputs to ranges of whole numbers")
    whole = [spec.name for spec in inputs if "int" in spec.dtype]
    for name, limits in ranges.items():
        if name not in whole:
            has = ", ".join(whole) or "there are none"
            raise ValueError(f"values has a range of {name!r}, which is not an input of whole numbers: {has}")
        fits = isinstance(limits, Mapping) and set(limits) == {"min", "max"}
        if not fits or not all(type(limit) is int for limit in limits.values()) or limits["min"] > limits["max"]:
            raise ValueError(f"values of {name!r} is {_short(limits)}, expected {{'min': 0, 'max': 9}}, say")


def check_preprocessing(preprocessing: Mapping[str, Standardisation], inputs: Sequence[TensorSpec]) -> None:
    """Check the preprocessing of inputs that hold images, channels first. Raises ValueError."""
    kinds = ("float32", "float16", "float64", "uint8")
    shapes = {spec.name: spec.shape for spec in inputs if spec.dtype in kinds}
    for name, pixels in preprocessing.items():
        if name not in shapes or len(shapes[name]) < 3:
            images = ", ".join(known for known, shape in shapes.items() if len(shape) > 2) or "there are none"
            raise ValueError(f"preprocessing names the input {name!r}, which does not hold images: {images}")
        channels = shapes[name][-3]
        if isinstance(channels, int) and len(pixels.mean) not in (1, channels):
            raise ValueError(
                f"preprocessing of {name!r} has {len(pixels.mean)} means, but the input has {channels} channels"
            )


def check_class_names(names: Sequence[str], outputs: Sequence[TensorSpec]) -> None:
    """Check that there is a name for each class of the logits (that output, or the first). Raises ValueError."""
    several = isinstance(names, (list, tuple)) and all(isinstance(name, str) and name for name in names)
    if not several or len(set(names)) != len(names):
        raise ValueError(f"class_names must be distinct texts, got {names!r}")
    logits = next((spec for spec in outputs if spec.name == "logits"), outputs[0] if outputs else None)
    if names and (logits is None or not logits.shape or logits.shape[-1] != len(names)):
        raise ValueError(
            f"class_names has {len(names)} names, but the last axis of the logits is not that long: {logits}"
        )


def _check_specs(kind: str, specs: Sequence[TensorSpec]) -> None:
    names = [spec.name for spec in specs]
    if not names or not all(names) or len(set(names)) != len(names):
        raise ValueError(f"{kind} are named {_short(names)}, expected at least one and each once")
    for spec in specs:
        if "" in spec.shape:
            raise ValueError(f"axes of {spec.name} must be numbers or names: {_short(spec)}")
        if spec.dtype not in TENSOR_TYPES:
            raise ValueError(f"{spec.name} has the type {spec.dtype!r}, expected {', '.join(TENSOR_TYPES)}")


def _check_roles(roles: Roles | None, inputs: Sequence[TensorSpec]) -> None:
    """Refuse a batch that is not a leading axis and a mask that is not boolean: requests would be joined wrongly."""
    if roles is None:
        return
    if roles.batch is not None and roles.batch != leading_axis(inputs):
        raise ValueError(f"roles.batch is {_short(roles.batch)}, which is not the first axis of the inputs")
    masks = [spec.name for spec in mask_candidates(inputs)]
    if roles.mask is not None and roles.mask not in masks:
        raise ValueError(f"roles.mask is {_short(roles.mask)}, expected one of the boolean inputs {masks}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
