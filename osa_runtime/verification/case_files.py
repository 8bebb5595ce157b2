"""Cases and outputs in .npz files: ``case name/input name``, or plain input names for one case of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from osa_runtime.arrays import read_arrays, write_npz
from osa_runtime.artifact import TensorSpec
from osa_runtime.errors import InputError
from osa_runtime.parity.feeds import Case
from osa_runtime.verification.inside.insides import Array

GIVEN = "given"


def write_cases(path: Path, cases: Sequence[Case]) -> None:
    write_npz(path, {f"{case.name}/{name}": array for case in cases for name, array in case.feeds.items()})


def write_outputs(path: Path, outputs: Mapping[str, Mapping[str, Array]]) -> None:
    write_npz(path, {f"{case}/{name}": array for case, values in outputs.items() for name, array in values.items()})


def read_outputs(path: Path) -> dict[str, dict[str, Array]]:
    """Outputs by case and name; plain names belong to the case of plain inputs."""
    return _grouped(path)


def read_cases(path: Path, inputs: Sequence[TensorSpec]) -> list[Case]:
    """What ``write_cases`` wrote, or one case of plain arrays by input name."""
    return [_case(name, feeds, inputs) for name, feeds in _grouped(path).items()]


def _case(name: str, feeds: dict[str, Array], inputs: Sequence[TensorSpec]) -> Case:
    wanted = {spec.name for spec in inputs}
    if set(feeds) != wanted:
        raise InputError(
            f"The case {name!r} holds {', '.join(sorted(feeds))}; the model takes {', '.join(map(str, inputs))}."
        )
    kind = name.partition(" ")[0]
    sizes = {
        axis: size
        for spec in inputs
        for axis, size in zip(spec.shape, feeds[spec.name].shape, strict=False)
        if isinstance(axis, str)
    }
    return Case(kind, sizes, feeds)


def _grouped(path: Path) -> dict[str, dict[str, Array]]:
    content = read_arrays(path)
    if not isinstance(content, dict) or not content:
        raise InputError(f"{path} holds no arrays by name; expected an .npz.")
    found: dict[str, dict[str, Array]] = {}
    for key, array in content.items():
        case, _, name = key.rpartition("/")
        found.setdefault(case or GIVEN, {})[name] = array
    return found
