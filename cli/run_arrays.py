"""The arrays of ``osa run``: read from files and pictures, shown as outputs, and written to a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray

from osa_runtime.arrays import read_arrays
from osa_runtime.errors import InputError, MissingDependencyError
from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.manifest import Manifest
from osa_runtime.pixels import Standardisation
from osa_runtime.runtime.session import Session

Array = NDArray[Any]


def read_inputs(
    values: Sequence[str], interface: Interface, pixels: PixelSettings
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
        if path.suffix.lower() in SUFFIXES:
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


@dataclass(frozen=True)
class PixelSettings:
    """``--mean`` and ``--std`` as they were typed; they take precedence over the manifest."""

    mean: str | None = None
    std: str | None = None
    manifest: Manifest | None = None


def read_picture(path: Path, spec: TensorSpec, settings: PixelSettings) -> tuple[NDArray[Any], str]:
    """(1, channels, height, width) of the input's type, and a sentence on the conversion."""
    channels, height, width = spec.shape[1:]
    if not isinstance(height, int) or not isinstance(width, int) or channels not in MODES:
        raise InputError(f"{path} is a picture, which the input {spec} cannot take; give an array as .npy.")
    pixels, size = _decode(path, MODES[int(channels)], (width, height))
    used, whose = _standard(pixels, settings, spec.name, int(channels))
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
    pixels: NDArray[np.float64], settings: PixelSettings, name: str, channels: int
) -> tuple[Standardisation, str]:
    mean, std = settings.mean, settings.std
    if (mean is None) != (std is None):
        raise InputError("--mean and --std go together; give both or neither.")
    if mean is None or std is None:
        trained = settings.manifest.interface.pixels.get(name) if settings.manifest else None
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


DEFAULT_TOP = 5
MOST_ROWS = 10


class RunReport:
    def __init__(
        self, session: Session, outputs: Mapping[str, Array], seconds: float, notes: list[str], top: int | None
    ) -> None:
        self._placement = session.placement
        self._path = session.path
        self._class_names = session.manifest.class_names if session.manifest is not None else ()
        self._outputs, self._seconds, self._top = outputs, seconds, top
        fallback = [session.placement.note] if session.placement.note else []
        self._notes = fallback + notes

    def show(self, as_json: bool, out: Path | None) -> None:
        typer.echo(json.dumps(self.as_dict(), ensure_ascii=False, indent=2) if as_json else self.text(out))

    def as_dict(self) -> dict[str, Any]:
        placement: dict[str, Any] = {"device": self._placement.device, "provider": self._placement.provider}
        if self._placement.device != "cpu":
            placement["cpu_nodes"] = self._placement.cpu_nodes
        outputs = {name: self._describe(name, array) for name, array in self._outputs.items()}
        return {
            "model": str(self._path),
            "placement": placement,
            "seconds": round(self._seconds, 6),
            "notes": self._notes,
            "outputs": outputs,
        }

    def _describe(self, name: str, array: Array) -> dict[str, Any]:
        described: dict[str, Any] = {"shape": list(array.shape), "dtype": str(array.dtype)}
        if self._has_classes(name, array):
            described["rows"] = [{"index": list(i), "top": best} for i, best in self._rows(array)]
        else:
            described |= summary(array)
        return described

    def text(self, out: Path | None) -> str:
        lines = [f"note: {note}" for note in self._notes]
        for name, array in self._outputs.items():
            lines.append(f"{name}: {array.dtype}{list(array.shape)}")
            lines += self._table(array) if self._has_classes(name, array) else [f"  {_pairs(summary(array))}"]
        lines.append(f"{self._placement.provider} on {self._placement.device}, {self._seconds * 1e3:.2f} ms")
        if self._placement.device != "cpu":
            nodes = self._placement.cpu_nodes
            lines.append("nodes on the CPU: " + ("unknown" if nodes is None else ", ".join(nodes) or "none"))
        return "\n".join(lines + ([f"all outputs are in {out}"] if out else []))

    def _has_classes(self, name: str, array: Array) -> bool:
        suited = array.dtype.kind == "f" and array.ndim > 0 and array.size > 0
        return suited and (self._top is not None or (name == "logits" and array.ndim > 1))

    def _rows(self, array: Array) -> list[tuple[tuple[int, ...], list[dict[str, Any]]]]:
        top = self._top or DEFAULT_TOP
        found = [(index, best_classes(array[index], top)) for index in np.ndindex(array.shape[:-1])]
        if len(self._class_names) == array.shape[-1]:
            for _, best in found:
                for entry in best:
                    entry["name"] = self._class_names[entry["class"]]
        return found

    def _table(self, array: Array) -> list[str]:
        rows = self._rows(array[:MOST_ROWS] if array.ndim > 1 else array)
        lines = [f"  {_label(index)}{_classes(best)}" for index, best in rows[:MOST_ROWS]]
        hidden = array[..., 0].size - len(lines)
        return lines + ([f"  … and {hidden} more rows; --json or --out has all of them"] if hidden else [])


def best_classes(logits: Array, top: int) -> list[dict[str, Any]]:
    """The likeliest classes with their softmax probabilities, best first; equal ones by their number."""
    values = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):  # Inf becomes NaN, which is shown
        exponentials = np.exp(values - values.max())
        probabilities = exponentials / exponentials.sum()
    order = np.argsort(-values, kind="stable")[:top]
    return [{"class": int(i), "probability": _number(probabilities[i]), "logit": _number(values[i])} for i in order]


def summary(array: Array) -> dict[str, Any]:
    if array.size == 0:
        return {"values": "none"}
    if array.dtype.kind not in "uif":
        return {"true": int(np.count_nonzero(array)), "of": array.size}
    values = array.astype(np.float64)
    with np.errstate(invalid="ignore"):  # as above
        found = {"min": values.min(), "max": values.max(), "mean": values.mean()}
    return {key: _number(value) for key, value in found.items()}


def _number(value: Any) -> float | None:
    """A number for JSON, which has neither NaN nor infinity."""
    return float(value) if np.isfinite(value) else None


def _label(index: tuple[int, ...]) -> str:
    return f"{list(index)}  " if index else ""


def _classes(best: list[dict[str, Any]]) -> str:
    return " · ".join(f"class {c['class']}{_named(c)} {_percent(c['probability'])}" for c in best)


def _named(entry: dict[str, Any]) -> str:
    return f" ({entry['name']})" if "name" in entry else ""


def _percent(probability: float | None) -> str:
    return "NaN" if probability is None else f"{probability:.1%}"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
