"""The cases beyond the plain sweep: the wide one, real data, and inputs from files."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from osa_runtime.arrays import read_arrays, write_npz
from osa_runtime.errors import InputError
from osa_runtime.evaluation import Classifier, read_samples
from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.parity.certificate import CaseResult, Check
from osa_runtime.parity.feeds import Case, Planned, essential, further
from osa_runtime.runtime.input_checks import check_finite_inputs, check_inputs
from osa_runtime.runtime.session import Session
from osa_runtime.verification.inside.model_parts import Array
from osa_runtime.verification.settings import VerifySettings

SECONDS = 20.0  # for the cases that are not essential


def widened(
    interface: Interface,
    cases: list[Case],
    settings: VerifySettings,
    judge: Callable[[Case], CaseResult],
    *,
    width: int | None = None,
    nan: bool = True,
) -> tuple[list[CaseResult], Check]:
    """Judge the cases beyond the plain sweep and add them to ``cases``. Without ``nan``, skip what may be NaN.

    The check describes what all of them cover.
    """
    known, results = {case.name for case in cases}, list[CaseResult]()
    middle = next((case.sizes for case in cases if case.kind != "random"), cases[-1].sizes)
    grid = settings.batches is None and settings.lengths is None

    def run_new(planned: Planned) -> None:
        case = planned.case(interface)
        if case.name not in known and (nan or not planned.may_be_nan):
            known.add(case.name)
            results.append(judge(case))
            cases.append(case)

    for planned in essential(interface, middle, settings.seed, grid=grid):
        run_new(planned)
    more = further(interface, middle, width, settings.seed) if grid and not settings.quick else []
    left_out = affordable(more, run_new, settings.seconds)
    return results, described(interface, cases, left_out)


def affordable(planned: Sequence[Planned], run: Callable[[Planned], None], seconds: float | None) -> int:
    """Run the plan in order, skip what would take too long at the pace so far, and return the number of skipped."""
    seconds = SECONDS if seconds is None else seconds
    start, pace, left_out = time.monotonic(), 0.0, 0
    for one in planned:
        begun = time.monotonic()
        if begun - start + pace * one.cells > seconds:
            left_out += 1
            continue
        run(one)
        # Half a second is the cost of starting, not of the size.
        pace = max(pace, (time.monotonic() - begun - 0.5) / one.cells)
    return left_out


def described(interface: Interface, cases: Sequence[Case], left_out: int) -> Check:
    """Describe the coverage of the cases in one line."""
    parts = [f"{len(cases)} cases", *_ranges(cases), *_ids(interface, cases)]
    if left_out:
        parts.append(f"{left_out} more sizes were left out for time")
    return Check("cases", True, ", ".join(parts))


def _ranges(cases: Sequence[Case]) -> Iterator[str]:
    for axis in dict.fromkeys(axis for case in cases for axis in case.sizes):
        sizes = {case.sizes[axis] for case in cases if axis in case.sizes}
        yield f"{axis} {min(sizes)} to {max(sizes)} ({len(sizes)} sizes)"


def _ids(interface: Interface, cases: Sequence[Case]) -> Iterator[str]:
    for name, limits in interface.values.items():
        seen = np.unique(np.concatenate([case.feeds[name].reshape(-1) for case in cases if name in case.feeds]))
        count, kind = limits["max"] - limits["min"] + 1, "shades" if name in interface.pixels else "ids"
        yield f"every one of {count} {kind}" if len(seen) == count else f"{len(seen)} of {count} {kind}"


ROWS_PER_CASE, MOST_SAMPLES = 32, 256


def data_cases(data: str, session: Session, interface: Interface) -> list[Case]:
    """Cases from ``data`` as `osa evaluate` takes it: the name of a data set, or a labelled .npz file."""
    samples = read_samples(data).limited(MOST_SAMPLES)
    feeds = samples.feeds(Classifier(str(session.path), interface, session.run))
    rows = min(
        ROWS_PER_CASE if interface.batch is not None else 1, interface.limit(interface.batch or "") or ROWS_PER_CASE
    )
    cases = []
    for start in range(0, len(samples) - rows + 1, rows) if len(samples) > rows else [0]:
        cut = {name: array[start : start + rows] for name, array in feeds.items()}
        cases.append(Case(f"data {start}", interface.sizes(cut), cut))
    return cases


GIVEN = "given"
NOT_FINITE = ("broken ", "poisoned ", "scaled ")  # saved cases of the sweep that hold NaN or Inf on purpose


def write_cases(path: Path, cases: Sequence[Case]) -> None:
    write_npz(path, {_key(case.name, name): array for case in cases for name, array in case.feeds.items()})


def write_outputs(path: Path, outputs: Mapping[str, Mapping[str, Array]]) -> None:
    write_npz(path, {_key(case, name): array for case, values in outputs.items() for name, array in values.items()})


def read_outputs(path: Path, session: Session) -> dict[str, dict[str, Array]]:
    """Outputs by case and name; plain names belong to the case of plain inputs."""
    return _grouped(path, {spec.name for spec in session.outputs})


def read_cases(path: Path, session: Session) -> list[Case]:
    """Read the file of ``write_cases``, or one case of arrays by input name; check it as the model checks inputs."""
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
    """Escape the slashes in a name."""
    return text.replace("%", "%25").replace("/", "%2F")


def _unescaped(text: str) -> str:
    return text.replace("%2F", "/").replace("%25", "%")
