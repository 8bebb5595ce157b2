"""Examples from a file, for measuring the ranges of activations and the deviation of a quantised model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.arrays import read_arrays
from osa_runtime.artifact import Artifact, sha256
from osa_runtime.errors import InputError
from osa_runtime.interface import TensorSpec
from osa_runtime.manifest import CalibrationRecord
from osa_runtime.runtime.input_checks import check_finite_inputs, check_inputs

Array = NDArray[Any]
Feeds = dict[str, Array]

LEAST_EXAMPLES = 16
ROWS = 32  # in one run, if the model takes any number


@dataclass(frozen=True)
class Calibration:
    feeds: tuple[Feeds, ...]
    examples: int
    sha256: str

    def describe(self) -> CalibrationRecord:
        """The entry of the manifest; ``ranges`` are the limits beyond which a static model was never tested."""
        floats = {name for name, array in self.feeds[0].items() if array.dtype.kind == "f"}
        found = {name: [portion[name] for portion in self.feeds] for name in sorted(floats)}
        ranges: dict[str, tuple[float, ...]] = {
            n: (float(min(map(np.min, part))), float(max(map(np.max, part)))) for n, part in found.items()
        }
        return CalibrationRecord(self.examples, self.sha256, ranges)


def read_calibration(path: Path, artifact: Artifact) -> Calibration:
    """Read an .npz with an array for each input of the model, the examples along its first axis."""
    if not path.is_file():
        raise InputError(f"calibration={path}: there is no such file.")
    content, specs = read_arrays(path), artifact.manifest.inputs
    if not isinstance(content, Mapping):
        names = ", ".join(f"{spec.name}=…" for spec in specs)
        raise InputError(f"{path} holds one array without a name; write it with numpy.savez({path.stem!r}, {names}).")
    interface = artifact.manifest.interface
    feeds = _in_portions(path, content, artifact)
    try:
        for portion in feeds:
            check_inputs(portion, interface)
        check_finite_inputs(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    examples = min((len(content[spec.name]) for spec in specs), default=0)
    if examples < LEAST_EXAMPLES:
        raise InputError(
            f"{path} holds {examples} examples, expected {LEAST_EXAMPLES} or more: ranges from so few are too narrow. "
            "A few hundred that look like what the model will see are a good choice."
        )
    _check_values(path, content)
    return Calibration(feeds, examples, sha256(path))


def _in_portions(path: Path, content: Mapping[str, Array], artifact: Artifact) -> tuple[Feeds, ...]:
    """Split the arrays; those that are not inputs or have no axis go unchanged to the checks, which report them."""
    specs = {spec.name: spec for spec in artifact.manifest.inputs}
    if set(content) != set(specs) or any(array.ndim == 0 for array in content.values()):
        return (dict(content),)
    steps = {name: _step(specs[name], array, artifact) for name, array in content.items()}
    counts = {name: len(array) for name, array in content.items()}
    portions = {math.ceil(counts[name] / step) for name, step in steps.items()}
    if len(portions) != 1 or len({counts[n] for n, step in steps.items() if step == ROWS}) > 1:
        said = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise InputError(f"{path} holds {said}; expected as many examples of every input.")
    for name, count in counts.items():
        if steps[name] != ROWS and count % steps[name]:
            raise InputError(
                f"{path} holds {count} examples of {name}, but the model takes exactly {steps[name]} at a time; "
                "pass a multiple of that."
            )
    return tuple(
        {name: array[i * steps[name] : (i + 1) * steps[name]] for name, array in content.items()}
        for i in range(next(iter(portions)))
    )


def _step(spec: TensorSpec, array: Array, artifact: Artifact) -> int:
    first = spec.shape[0] if spec.shape else 1
    if isinstance(first, int):
        return max(1, first)
    interface = artifact.manifest.interface
    return interface.fitting(first, ROWS) if first == interface.batch else max(1, len(array))


def _check_values(path: Path, content: Mapping[str, Array]) -> None:
    for name, array in content.items():
        if array.dtype.kind == "f" and np.ptp(array) == 0:
            raise InputError(f"{path}: every value of {name} is {array.flat[0]}; expected examples of real inputs.")
