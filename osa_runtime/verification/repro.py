"""A folder that reproduces a fault in one part of a model: the part, its inputs, what should come out, and a script.

unit.onnx | unit.pt | unit.pt2    the part of the artifact
inputs.npz                        eager's inputs of the part
expected.npz                      what float64 makes of them (truth), and eager in the same precision (eager)
reproduce.py                      runs it and compares; needs numpy and ONNX Runtime, or torch
"""

from __future__ import annotations

import re
from pathlib import Path

from osa_runtime.arrays import write_npz
from osa_runtime.atomic import atomic_folder
from osa_runtime.parity.compare import Tolerance
from osa_runtime.parity.feeds import Case
from osa_runtime.verification.inside.insides import Array, Written
from osa_runtime.verification.parts import Part, partition
from osa_runtime.verification.unit_checks import Parties, value_at

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

RUN_TORCHSCRIPT_WAY = """import torch

part, inside = torch.jit.load(str(HERE / "{file}")), []
part(*(torch.from_numpy(inputs[name]) for name in inputs.files))
actual = dict(part.named_modules())["{kept_by}"].verification_input[0].numpy()
"""

RUN_PT2 = """import torch

part, inside = torch.export.load(HERE / "{file}").module(), []
result = part(*(torch.from_numpy(inputs[name]) for name in inputs.files))
actual = (result if isinstance(result, torch.Tensor) else result[{number}]).numpy()
"""

SCRIPT = '''"""{unit}, alone, on the case "{case}": how far is it from what it should give?

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
    """NaN where the shapes differ, or NaN and Inf are at other places."""
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
    """Write the folder, in place of an earlier one; returns it."""
    with atomic_folder(folder, replace=True, marker=MARKER) as temporary:
        written, expected = _write_part(temporary, parties, part, case)
        write_npz(temporary / "inputs.npz", dict(written.inputs))
        write_npz(temporary / "expected.npz", expected)
        words = {"unit": _words(part.name), "case": _words(case.name), "run": _run(written)}
        text = SCRIPT.format(**words, rtol=limit.rtol, atol=limit.atol)
        (temporary / MARKER).write_text(text, encoding="utf-8")
    return folder


def _write_part(folder: Path, parties: Parties, part: Part, case: Case) -> tuple[Written, dict[str, Array]]:
    eager, oracle, insides = parties.eager, parties.oracle, parties.insides
    if part.unit:
        inputs, expected = eager.calls_of([part.unit], case.feeds)[part.unit]
        written = insides.write_unit(part.unit, inputs, folder, case.feeds)
        return written, {"truth": oracle.call(part.unit, inputs), "eager": expected}
    assert part.end is not None
    units = [other.unit for other in partition(insides, eager) if other.unit]
    calls = eager.calls_of(units, case.feeds)
    expected, truth = (value_at(party.between(calls, case.feeds), part.end) for party in (eager, oracle))
    return insides.write_between(part.end, calls, case.feeds, folder), {"truth": truth, "eager": expected}


def _words(name: str) -> str:
    """A name that may come from a user's file, as text that cannot end a string of the script."""
    return re.sub(r"[^\w .,=×/→()-]", "?", name)


def _run(written: Written) -> str:
    template = {".onnx": RUN_ONNX, ".pt": RUN_TORCHSCRIPT, ".pt2": RUN_PT2}[Path(written.file).suffix]
    if written.kept_by is not None:
        template = RUN_TORCHSCRIPT_WAY
    return template.format(file=written.file, number=written.output, kept_by=written.kept_by)
