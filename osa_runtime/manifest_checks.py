"""What the fields of a manifest may hold: it may come from anywhere, and others rely on this without looking."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from osa_runtime.interface import Roles, leading_axis, mask_candidates
from osa_runtime.pixels import Standardisation

if TYPE_CHECKING:
    from osa_runtime.artifact import Manifest, TensorSpec

Kind = Callable[[Any], bool]

LARGEST = 2**63 - 1  # of an int64
TENSOR_TYPES = ("float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
DTYPES = {"onnx": ("fp32", "fp16", "w8", "w8a8")}  # of the model; other formats have the first two


def check_manifest(manifest: Manifest) -> None:
    """Raises ValueError for the first field that is not of the right kind."""
    for name, (kind, expected) in FIELDS.items():
        if not kind(getattr(manifest, name)):
            raise ValueError(f"{name} is {_short(getattr(manifest, name))}, expected {expected}")
    known = DTYPES.get(manifest.format, DTYPES["onnx"][:2])
    if manifest.dtype not in known:
        raise ValueError(f"dtype is {manifest.dtype!r}, expected one of {', '.join(known)}")
    _check_specs("inputs", manifest.inputs)
    _check_specs("outputs", manifest.outputs)
    for call in manifest.attentions:
        np.asarray(call.get("scale", 0.0), np.float64)  # raises ValueError for lists of different lengths
    check_value_ranges(manifest.values, manifest.inputs)
    _check_roles(manifest.roles, manifest.inputs)
    pixels = {name: Standardisation.from_dict(fields) for name, fields in manifest.preprocessing.items()}
    check_preprocessing(pixels, manifest.inputs)
    check_class_names(manifest.class_names, manifest.outputs)


def check_value_ranges(ranges: object, inputs: Sequence[TensorSpec]) -> None:
    """Of inputs that hold ids. Raises ValueError."""
    if not isinstance(ranges, Mapping):
        raise ValueError("values must map names of inputs to ranges of whole numbers")
    whole = [spec.name for spec in inputs if "int" in spec.dtype]
    for name, limits in ranges.items():
        if name not in whole:
            has = ", ".join(whole) or "there are none"
            raise ValueError(f"values has a range of {name!r}, which is no input of whole numbers: {has}")
        fits = isinstance(limits, Mapping) and set(limits) == {"min", "max"}
        if not fits or not all(map(_integer, limits.values())) or limits["min"] > limits["max"]:
            raise ValueError(f"values of {name!r} is {_short(limits)}, expected {{'min': 0, 'max': 9}}, say")


def check_preprocessing(preprocessing: Mapping[str, Standardisation], inputs: Sequence[TensorSpec]) -> None:
    """Of inputs that hold images, channels before height and width. Raises ValueError."""
    kinds = ("float32", "float16", "float64", "uint8")
    shapes = {spec.name: spec.shape for spec in inputs if spec.dtype in kinds}
    for name, pixels in preprocessing.items():
        if name not in shapes or len(shapes[name]) < 3:
            images = ", ".join(known for known, shape in shapes.items() if len(shape) > 2) or "there are none"
            raise ValueError(f"preprocessing names the input {name!r}, which holds no images: {images}")
        channels = shapes[name][-3]
        if isinstance(channels, int) and len(pixels.mean) not in (1, channels):
            raise ValueError(
                f"preprocessing of {name!r} has {len(pixels.mean)} means, but the input has {channels} channels"
            )


def check_class_names(names: Sequence[str], outputs: Sequence[TensorSpec]) -> None:
    """As many as the logits have classes: the output of that name, or the first one. Raises ValueError."""
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
    if not names or not all(map(_name, names)) or len(set(names)) != len(names):
        raise ValueError(f"{kind} are named {_short(names)}, expected at least one and each once")
    for spec in specs:
        if not all(_whole(axis) or _name(axis) for axis in spec.shape):
            raise ValueError(f"axes of {spec.name} must be numbers or names, and sizes are 0 or more: {_short(spec)}")
        if spec.dtype not in TENSOR_TYPES:
            raise ValueError(f"{spec.name} has the type {spec.dtype!r}, expected {', '.join(TENSOR_TYPES)}")


def _check_roles(roles: Roles | None, inputs: Sequence[TensorSpec]) -> None:
    """A batch that is no leading axis, or a mask that is not boolean, would be joined or padded wrongly."""
    if roles is None:
        return
    if roles.batch is not None and roles.batch != leading_axis(inputs):
        raise ValueError(f"roles.batch is {_short(roles.batch)}, which is not the first axis of the inputs")
    masks = [spec.name for spec in mask_candidates(inputs)]
    if roles.mask is not None and roles.mask not in masks:
        raise ValueError(f"roles.mask is {_short(roles.mask)}, expected one of the boolean inputs {masks}")


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _integer(value: Any) -> bool:
    return type(value) is int and -LARGEST <= value <= LARGEST


def _whole(value: Any) -> bool:
    return _integer(value) and value >= 0


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _numbers(value: Any) -> bool:
    return all(map(_numbers, value)) if isinstance(value, list) else _number(value)


def _none(value: Any) -> bool:
    return value is None


def _either(*kinds: Kind) -> Kind:
    return lambda value: any(kind(value) for kind in kinds)


def _list(kind: Kind) -> Kind:
    return lambda value: isinstance(value, (list, tuple)) and all(map(kind, value))


def _map(kind: Kind) -> Kind:
    return lambda value: isinstance(value, dict) and all(map(kind, value.values()))


def _object(**kinds: Kind) -> Kind:
    """An object whose known members, where it has them, are of these kinds."""
    return lambda value: isinstance(value, dict) and all(kinds[key](value[key]) for key in kinds.keys() & value.keys())


def _range(value: Any) -> bool:
    return _map(_integer)(value) and value.get("min", -math.inf) <= value.get("max", math.inf)


_OBJECT = _object()
_CALL = _object(name=_text, inputs=_list(_text), output=_text, squarings=_text, scale=_numbers)
_SQUARINGS = _either(_text, _whole)
_SETTING = _either(_text, _none)

# Whether settings are known ones is for those to say who use them.
FIELDS: dict[str, tuple[Kind, str]] = {
    "format": (_text, "a name"),
    "parameters": (_whole, "a whole number, 0 or more"),
    "axes": (_map(_range), "a range of whole numbers for each name"),
    "values": (_OBJECT, "a range of whole numbers for each name"),
    "preprocessing": (_OBJECT, "what is done to pixels, for each name"),
    "dtype": (_text, "a name"),
    "depth": (_either(_none, _whole), "a whole number, 0 or more"),
    "opset": (_either(_none, _whole), "a whole number, 0 or more"),
    "functions": (_SETTING, "a name"),
    "osa": (
        _object(form=_text, approximant=_text, squarings=_SQUARINGS, largest_norm=_positive),
        "form, approximant, squarings and largest_norm as an export writes them",
    ),
    "attentions": (
        _list(_CALL),
        "the names of inputs and output, and numbers for a scale, for each call",
    ),
    "files": (_map(_object(sha256=_text, size=_whole)), "size and sha256 for each name"),
    "source": (_object(sha256=_SETTING), "an object, with a text for sha256"),
    "versions": (_map(_text), "a text for each package"),
    "quantization": (
        _object(
            weights=_text,
            weight_bits=_whole,
            activations=_text,
            quantized=_whole,
            kept=_list(_text),
            source=_map(_text),
            versions=_map(_text),
            calibration=_OBJECT,
            activation_ranges=_OBJECT,
            deviation=_map(_OBJECT),
        ),
        "what `osa quantize` writes",
    ),
    "export": (
        _object(
            form=_SETTING,
            approximant=_SETTING,
            squarings=_either(_none, _SQUARINGS),
            external_data=lambda value: isinstance(value, bool),
            examples=_map(_list(_whole)),
            smallest=_map(_whole),
        ),
        "what `osa export` writes",
    ),
}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
