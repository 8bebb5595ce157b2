"""The ``--input`` values of ``osa run``: which file is meant for which input, and what is in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.arrays import read_arrays
from osa_runtime.artifact import TensorSpec
from osa_runtime.cli.picture import PixelOptions, is_picture, read_picture
from osa_runtime.errors import InputError
from osa_runtime.interface import Interface

Array = NDArray[Any]


def read_inputs(
    values: Sequence[str], interface: Interface, pixels: PixelOptions
) -> tuple[dict[str, Array], list[str]]:
    """The arrays by input name, and notes on what was done to them."""
    specs = interface.inputs
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
        raise InputError(f"--input {value} gives {', '.join(twice)} a second time; give each input once.")
    feeds.update(new)
