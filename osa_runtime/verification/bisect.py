"""Find the first wrong part of a model on a case that fails, and write a folder that reproduces the fault."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from osa_runtime.arrays import write_npz
from osa_runtime.atomic import atomic_folder
from osa_runtime.errors import OsaError
from osa_runtime.parity.certificate import Bisection, UnitResult
from osa_runtime.parity.comparison import Tolerance
from osa_runtime.parity.feeds import Case
from osa_runtime.verification.inside.model_parts import Array, ModelParts, Written, chunks
from osa_runtime.verification.unit_checks import UNIT_DEPTH, Part, Parties, behind, check_parts, partition, value_at

MOST_CASES = 6  # that are searched for a wrong part


@dataclass(frozen=True)
class Suspicion:
    """A case on which the whole model or a part of it is wrong, with its tolerance by the number of matrices."""

    case: Case
    whole: bool
    tolerance: Callable[[int], Tolerance]


def bisect(
    parties: Parties, suspicions: Sequence[Suspicion], folder: Path | None
) -> tuple[tuple[UnitResult, ...], Bisection | None]:
    """Check all parts on the first of these cases on which one is wrong by itself, and name that part.

    If no part is wrong by itself on any of them, the results of the first case are returned, and no part is named.
    """
    chosen: tuple[Suspicion, list[UnitResult]] | None = None
    for suspicion in suspicions[:MOST_CASES]:
        try:
            results = list(check_parts(parties, suspicion.case, suspicion.tolerance(UNIT_DEPTH)))
        except OsaError:
            continue  # eager itself refuses this input
        wrong = not all(result.passed for result in results)
        if wrong or chosen is None:
            chosen = (suspicion, results)
        if wrong:
            break
    if chosen is None or not chosen[1]:
        return (), None
    suspicion, results = chosen
    parts = partition(parties.model_parts, parties.eager)
    found = tuple(with_cumulative(results, parts, (parties.model_parts, parties.eager, parties.oracle), suspicion))
    return found, _reproduced(first_wrong(found, suspicion.case), found, parties, suspicion, folder)


def first_wrong(units: Sequence[UnitResult], case: Case) -> Bisection:
    alone = next((unit.unit for unit in units if not unit.passed), None)
    wrong_behind = next((unit.unit for unit in units if unit.cumulative_passed is False), None)
    return Bisection(alone, wrong_behind, case.name)


def _reproduced(
    bisection: Bisection, units: Sequence[UnitResult], parties: Parties, suspicion: Suspicion, folder: Path | None
) -> Bisection:
    """Write the reproduction; only a part that is wrong by itself can be reproduced by itself."""
    if bisection.alone is None or folder is None:
        return bisection
    result = next(unit for unit in units if unit.unit == bisection.alone)
    part = next(part for part in partition(parties.model_parts, parties.eager) if part.name == bisection.alone)
    limit = Tolerance(result.tolerance, suspicion.tolerance(UNIT_DEPTH).atol)
    try:
        where = write_repro(folder, parties, part, suspicion.case, limit)
    except OsaError as error:
        return dataclasses.replace(bisection, repro=f"not written: {error}")
    return dataclasses.replace(bisection, repro=str(where))


def with_cumulative(
    results: Sequence[UnitResult], parts: Sequence[Part], parties: Sequence[ModelParts], suspicion: Suspicion
) -> Iterator[UnitResult]:
    """Add the distance at the end of each part in a run of the whole model, a few parts at a time.

    ``parties`` are the artifact, the reference, and the one that both are measured against.
    """
    by_name, feeds, numbered = {part.name: part for part in parts}, suspicion.case.feeds, dict(enumerate(results))
    for numbers in chunks(tuple(numbered), _signal_bytes(parties[1], parts, feeds)):
        some = [by_name[numbered[number].unit] for number in numbers]
        try:
            values = [_signals(party, some, feeds) for party in parties]
        except OsaError:
            yield from (numbered[number] for number in numbers)
            continue
        for number, part in zip(numbers, some, strict=True):
            if isinstance(part.end, int):  # the case is judged by the output of the whole model
                yield dataclasses.replace(numbered[number], cumulative_passed=not suspicion.whole)
            else:
                actual, expected, truth = (found[part.name] for found in values)
                limit = suspicion.tolerance(4 + UNIT_DEPTH * number)
                yield behind(numbered[number], actual, expected, truth, limit)


def _signal_bytes(reference: ModelParts, parts: Sequence[Part], feeds: Mapping[str, Array]) -> int:
    """The bytes of one signal in all parties, estimated by the largest of a few."""
    units = [part.unit for part in parts if part.unit][:3]
    return 4 * max((x.nbytes for x in reference.outputs_of(units, feeds).values()), default=1)


def _signals(party: ModelParts, parts: Sequence[Part], feeds: Mapping[str, Array]) -> dict[str, Array]:
    units, ends = [part.unit for part in parts if part.unit], [part.end for part in parts if isinstance(part.end, str)]
    outputs = party.outputs_of(units, feeds) if units else {}
    inputs = party.inputs_of(ends, feeds) if ends else {}
    found = {part.name: outputs[part.unit] for part in parts if part.unit}
    return found | {part.name: inputs[part.end] for part in parts if isinstance(part.end, str)}


MARKER = "reproduce.py"

RUN_ONNX = """import onnxruntime

session = onnxruntime.InferenceSession(str(HERE / "{file}"), providers=["CPUExecutionProvider"])
actual, *inside = session.run(None, {{name: inputs[name] for name in inputs.files}})
"""

RUN_TORCHSCRIPT = """import torch

part, inside = torch.jit.load(str(HERE / "{file}")), []
result = part(*(torch.from_numpy(inputs[name]) for name in inputs.files))
actual = (result if isinstance(result, torch.Tensor) else result[{number}]).numpy()
"""

RUN_TORCHSCRIPT_BETWEEN = """import torch

part, inside = torch.jit.load(str(HERE / "{file}")), []
part(*(torch.from_numpy(inputs[name]) for name in inputs.files))
actual = dict(part.named_modules())["{kept_by}"].verification_input[0].numpy()
"""

RUN_PT2 = """import torch

part, inside = torch.export.load(HERE / "{file}").module(), []
result = part(*(torch.from_numpy(inputs[name]) for name in inputs.files))
actual = (result if isinstance(result, torch.Tensor) else result[{number}]).numpy()
"""

SCRIPT = '''"""{unit}, alone, on the case "{case}": its distance from the expected result.

python reproduce.py exits with 1 while the part is wrong, and with 0 once it is right.
"""

import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
TOLERANCE, ABSOLUTE = {rtol!r}, {atol!r}  # the first is relative to the largest expected value

inputs, expected = np.load(HERE / "inputs.npz"), np.load(HERE / "expected.npz")
{run}

def error_of(values, truth):
    """Return NaN if the shapes differ, or NaN and Inf are at other places."""
    known = np.isfinite(truth)
    if values.shape != truth.shape or not np.array_equal(np.isfinite(values), known):
        return float("nan")
    if not known.any():
        return 0.0
    difference = np.abs(values.astype(np.float64) - truth)[known].max()
    return float(max(0.0, difference - ABSOLUTE) / max(np.abs(truth[known]).max(), 1e-300))


truth = expected["truth"]
error, eager = error_of(actual, truth), error_of(expected["eager"], truth)
print(f"{unit}: relative error {{error:.3g}} (eager: {{eager:.3g}}), tolerance {{TOLERANCE:.3g}}")
if np.isnan(error):
    print("shape", actual.shape, "for", truth.shape, "and", int((~np.isfinite(actual)).sum()), "values are NaN or Inf")
overflow = sum(int((~np.isfinite(values)).sum()) for values in inside)
if overflow:
    print(overflow, "values inside the part are beyond the range of its type")
sys.exit(0 if error <= TOLERANCE and not overflow else 1)
'''


def write_repro(folder: Path, parties: Parties, part: Part, case: Case, limit: Tolerance) -> Path:
    """Write the folder, in place of an earlier one, and return it."""
    with atomic_folder(folder, replace=True, marker=MARKER) as temporary:
        written, expected = _write_part(temporary, parties, part, case)
        write_npz(temporary / "inputs.npz", dict(written.inputs))
        write_npz(temporary / "expected.npz", expected)
        words = {"unit": _words(part.name), "case": _words(case.name), "run": _run(written)}
        text = SCRIPT.format(**words, rtol=limit.rtol, atol=limit.atol)
        (temporary / MARKER).write_text(text, encoding="utf-8")
    return folder


def _write_part(folder: Path, parties: Parties, part: Part, case: Case) -> tuple[Written, dict[str, Array]]:
    eager, oracle, model_parts = parties.eager, parties.oracle, parties.model_parts
    if part.unit:
        inputs, expected = eager.calls_of([part.unit], case.feeds)[part.unit]
        written = model_parts.write_unit(part.unit, inputs, folder, case.feeds)
        return written, {"truth": oracle.call(part.unit, inputs), "eager": expected}
    assert part.end is not None
    units = [other.unit for other in partition(model_parts, eager) if other.unit]
    calls = eager.calls_of(units, case.feeds)
    expected, truth = (value_at(party.between(calls, case.feeds), part.end) for party in (eager, oracle))
    return model_parts.write_between(part.end, calls, case.feeds, folder), {"truth": truth, "eager": expected}


def _words(name: str) -> str:
    """The name, which may come from a user's file, as text that cannot end a string of the script."""
    return re.sub(r"[^\w .,=×/→()-]", "?", name)


def _run(written: Written) -> str:
    template = {".onnx": RUN_ONNX, ".pt": RUN_TORCHSCRIPT, ".pt2": RUN_PT2}[Path(written.file).suffix]
    if written.kept_by is not None:
        template = RUN_TORCHSCRIPT_BETWEEN
    return template.format(file=written.file, number=written.output, kept_by=written.kept_by)
