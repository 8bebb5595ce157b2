"""The ``--input`` values of `osa run`: arrays and pictures, assigned to the model's inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.arrays import read_arrays
from osa_runtime.errors import InputError, MissingDependencyError
from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.manifest import Manifest
from osa_runtime.pixels import Standardisation

Array = NDArray[Any]


def read_inputs(
    values: Sequence[str], interface: Interface, pixels: PixelOptions
) -> tuple[dict[str, Array], list[str]]:
    """The arrays by input name, and notes on their conversion."""
    specs = interface.inputs
    if not values:
        raise InputError(f"No --input was given; the model takes {', '.join(map(str, specs))}.")
    feeds: dict[str, Array] = {}
    notes: list[str] = []
    pictures: set[str] = set()
    for value in values:
        name, path = _split(value, specs)
        if not path.is_file():
            raise InputError(f"There is no file {path}, which --input {value} names.")
        if is_picture(path):
            spec = _image_spec(name, path, specs)
            array, note = read_picture(path, spec, pixels)
            notes.append(note)
            if spec.name in pictures:
                feeds[spec.name] = np.concatenate([feeds[spec.name], array])
                continue
            pictures.add(spec.name)
            _add(feeds, {spec.name: array}, value)
        else:
            _add(feeds, _arrays(name, path, interface), value)
    real = interface.missing_mask(feeds)
    if real is not None:
        feeds[str(interface.mask)] = np.ones(real, bool)
        notes.append("no mask was given: every token counts as real")
    return feeds, notes


def _split(value: str, specs: Sequence[TensorSpec]) -> tuple[str | None, Path]:
    name, equals, path = value.partition("=")
    names = [spec.name for spec in specs]
    if equals and name in names:
        return name, Path(path)
    if equals and not Path(value).exists():  # otherwise it is a file with = in its name
        raise InputError(f"--input {value} names the input {name!r}; the model takes {', '.join(map(str, specs))}.")
    return None, Path(value)


def _image_spec(name: str | None, path: Path, specs: Sequence[TensorSpec]) -> TensorSpec:
    images = [s for s in specs if len(s.shape) == 4 and s.dtype in ("float32", "float16", "float64")]
    found = [s for s in images if name in (None, s.name)]
    if len(found) != 1:
        raise InputError(
            f"{path} is a picture, but it is not clear which input takes images (batch, channels, height, width); "
            f"the model takes {', '.join(map(str, specs))}. Give arrays as NAME=FILE.npy."
        )
    return found[0]


def _arrays(name: str | None, path: Path, interface: Interface) -> dict[str, Array]:
    content = read_arrays(path)
    if isinstance(content, Mapping):
        if name is None:
            return dict(content)
        if len(content) != 1 and name not in content:
            raise InputError(f"{path} holds {', '.join(content)}; give it without {name}=, or with one array.")
        return {name: content.get(name, next(iter(content.values())))}
    candidates = [spec for spec in interface.inputs if spec.name != interface.mask]
    if name is None and len(candidates) != 1:
        raise InputError(
            f"--input {path} does not say which input it is; write NAME={path} with one of "
            f"{', '.join(spec.name for spec in interface.inputs)}."
        )
    return {name or candidates[0].name: content}


def _add(feeds: dict[str, Array], new: Mapping[str, Array], value: str) -> None:
    twice = sorted(set(feeds) & set(new))
    if twice:
        raise InputError(f"--input {value} repeats {', '.join(twice)}; pass each input once.")
    feeds.update(new)


SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
UNIT = (0.0, 1.0)


def is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


@dataclass(frozen=True)
class PixelOptions:
    """``--mean`` and ``--std`` as they were typed; they take precedence over the manifest."""

    mean: str | None = None
    std: str | None = None
    manifest: Manifest | None = None


def read_picture(path: Path, spec: TensorSpec, options: PixelOptions) -> tuple[NDArray[Any], str]:
    """(1, channels, height, width) of the input's type, and a sentence on the conversion."""
    channels, height, width = spec.shape[1:]
    if not isinstance(height, int) or not isinstance(width, int) or channels not in MODES:
        raise InputError(f"{path} is a picture, which the input {spec} cannot take; give an array as .npy.")
    pixels, size = _decode(path, MODES[int(channels)], (width, height))
    used, whose = _standard(pixels, options, spec.name, int(channels))
    if len(used.mean) not in (1, int(channels)):
        raise InputError(f"The model standardises {len(used.mean)} channels, but {spec} has {channels}.")
    note = (
        f"{path.name}: {MODES[int(channels)]}, {size[0]}×{size[1]} resized to {width}×{height}, "
        f"scaled to {used}, {whose}"
    )
    scaled = used.inputs(pixels.reshape(height, width, int(channels)), spec.dtype)
    return scaled.transpose(2, 0, 1)[None], note


def _decode(path: Path, mode: str, size: tuple[int, int]) -> tuple[NDArray[np.float64], tuple[int, int]]:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError(
            "Reading pictures needs Pillow, which is not installed; run: pip install pillow, or give an array as .npy."
        ) from error
    try:
        with Image.open(path) as image:
            before = image.size
            resized = image.convert(mode).resize(size, Image.Resampling.BILINEAR)
            return np.asarray(resized, dtype=np.float64) / 255.0, before
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as a picture: {error}") from error


def _standard(
    pixels: NDArray[np.float64], options: PixelOptions, name: str, channels: int
) -> tuple[Standardisation, str]:
    mean, std = options.mean, options.std
    if (mean is None) != (std is None):
        raise InputError("--mean and --std go together; give both or neither.")
    if mean is None or std is None:
        trained = options.manifest.interface.pixels.get(name) if options.manifest else None
        if trained is not None:
            return trained, "as in training"
        # A picture of one colour has a deviation of zero; dividing by it would return NaN.
        own = Standardisation((float(pixels.mean()),), (float(pixels.std()) or 1.0,), UNIT)
        return own, "the picture's own mean and deviation: the model has no record of its training data"
    means, deviations = _per_channel("--mean", mean, channels), _per_channel("--std", std, channels)
    if min(deviations) <= 0:
        raise InputError(f"--std is {std}, expected numbers above 0.")
    most = max(len(means), len(deviations))
    means, deviations = (numbers * (most // len(numbers)) for numbers in (means, deviations))
    return Standardisation(means, deviations, UNIT), "as --mean and --std say"


def _per_channel(flag: str, text: str, channels: int) -> tuple[float, ...]:
    """One number for all channels, or one for each."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, channels) or not all(map(math.isfinite, numbers)):
        each = f", or {channels} with commas between them, one for each channel" if channels > 1 else ""
        raise InputError(f"{flag} is {text!r}, expected one finite number{each}.")
    return tuple(numbers)
