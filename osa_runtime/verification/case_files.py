"""Cases and outputs in .npz files: ``case name/input name``, or plain input names for one case of one's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from osa_runtime.arrays import read_arrays, write_npz
from osa_runtime.artifact import TensorSpec
from osa_runtime.errors import InputError
from osa_runtime.parity.feeds import Case
from osa_runtime.runtime.input_checks import check_finite_inputs, check_inputs
from osa_runtime.runtime.session import Session
from osa_runtime.verification.inside.insides import Array

GIVEN = "given"
NOT_FINITE = ("broken ", "poisoned ", "scaled ")  # saved cases of the sweep in which NaN or Inf is meant


def write_cases(path: Path, cases: Sequence[Case]) -> None:
    write_npz(path, {_key(case.name, name): array for case in cases for name, array in case.feeds.items()})


def write_outputs(path: Path, outputs: Mapping[str, Mapping[str, Array]]) -> None:
    write_npz(path, {_key(case, name): array for case, values in outputs.items() for name, array in values.items()})


def read_outputs(path: Path, session: Session) -> dict[str, dict[str, Array]]:
    """Outputs by case and name; plain names belong to the case of plain inputs."""
    return _grouped(path, {spec.name for spec in session.outputs})


def read_cases(path: Path, session: Session) -> list[Case]:
    """What ``write_cases`` wrote, or one case of plain arrays by input name; refused where the model would refuse."""
    found = _grouped(path, {spec.name for spec in session.inputs})
    return [_case(name, feeds, session, path) for name, feeds in found.items()]


def _case(name: str, feeds: dict[str, Array], session: Session, path: Path) -> Case:
    try:
        arrays = check_inputs(feeds, session.interface)
        if not name.startswith(NOT_FINITE):
            check_finite_inputs(arrays)
    except InputError as error:
        raise InputError(f"The case {name!r} of {path}: {error}") from error
    sizes = _sizes(session.inputs, arrays)
    ending = "".join(f" {axis}={size}" for axis, size in sizes.items())
    return Case(name.removesuffix(ending) or GIVEN, sizes, arrays)


def _sizes(inputs: Sequence[TensorSpec], arrays: Mapping[str, Array]) -> dict[str, int]:
    return {
        axis: size
        for spec in inputs
        for axis, size in zip(spec.shape, arrays[spec.name].shape, strict=False)
        if isinstance(axis, str)
    }


def _grouped(path: Path, plain: Collection[str]) -> dict[str, dict[str, Array]]:
    content = read_arrays(path)
    if not isinstance(content, dict) or not content:
        raise InputError(f"{path} holds no arrays by name; expected an .npz.")
    found: dict[str, dict[str, Array]] = {}
    for key, array in content.items():
        case, _, name = ("", "", key) if key in plain else key.rpartition("/")
        found.setdefault(_unescaped(case) or GIVEN, {})[_unescaped(name) if case else name] = array
    return found


def _key(case: str, name: str) -> str:
    return f"{_escaped(case)}/{_escaped(name)}"


def _escaped(text: str) -> str:
    """Names may hold slashes themselves."""
    return text.replace("%", "%25").replace("/", "%2F")


def _unescaped(text: str) -> str:
    return text.replace("%2F", "/").replace("%25", "%")
