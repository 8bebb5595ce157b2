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
from osa_runtime.parity.feeds import Case
from osa_runtime.verification.inside.eager_insides import EagerInsides
from osa_runtime.verification.inside.insides import Insides

MARKER = "reproduce.py"

RUN_ONNX = """import onnxruntime

session = onnxruntime.InferenceSession(str(HERE / "{file}"), providers=["CPUExecutionProvider"])
actual = session.run(None, {{name: inputs[name] for name in inputs.files}})[0]
"""

RUN_TORCHSCRIPT = """import torch

part = torch.jit.load(str(HERE / "{file}"))
actual = part(*(torch.from_numpy(inputs[name]) for name in inputs.files)).numpy()
"""

RUN_PT2 = """import torch

part = torch.export.load(HERE / "{file}").module()
actual = part(*(torch.from_numpy(inputs[name]) for name in inputs.files)).numpy()
"""

SCRIPT = '''"""{unit}, alone, on the case "{case}": how far is it from what it should give?

python reproduce.py leaves with 1 while the part is wrong.
"""

import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
TOLERANCE = {tolerance!r}  # relative to the largest expected value

inputs, expected = np.load(HERE / "inputs.npz"), np.load(HERE / "expected.npz")
{run}
truth = expected["truth"]
difference = np.abs(actual.astype(np.float64) - truth)
error = float(difference.max() / np.abs(truth).max()) if np.isfinite(difference).all() else float("nan")
eager = float(np.abs(expected["eager"].astype(np.float64) - truth).max() / np.abs(truth).max())
print(f"{unit}: relative error {{error:.3g}} (eager: {{eager:.3g}}), tolerance {{TOLERANCE:.3g}}")
if np.isfinite(difference).all():
    print("worst at", tuple(int(i) for i in np.unravel_index(difference.argmax(), difference.shape)))
else:
    print(int((~np.isfinite(actual)).sum()), "of", actual.size, "values are NaN or Inf")
sys.exit(0 if error <= TOLERANCE else 1)
'''


def write_repro(
    folder: Path, insides: Insides, eager: EagerInsides, oracle: EagerInsides, unit: str, case: Case, tolerance: float
) -> Path:
    """Write the folder, in place of an earlier one; returns it."""
    inputs, expected = eager.calls_of([unit], case.feeds)[unit]
    truth = oracle.call(unit, inputs)
    with atomic_folder(folder, replace=True, marker=MARKER) as temporary:
        file, named = insides.write_unit(unit, inputs, temporary)
        write_npz(temporary / "inputs.npz", named)
        write_npz(temporary / "expected.npz", {"truth": truth, "eager": expected})
        text = SCRIPT.format(unit=_words(unit), case=_words(case.name), tolerance=tolerance, run=_run(file))
        (temporary / MARKER).write_text(text, encoding="utf-8")
    return folder


def _words(name: str) -> str:
    """A name that may come from a user's file, as text that cannot end a string of the script."""
    return re.sub(r"[^\w .=×/-]", "?", name)


def _run(file: str) -> str:
    template = {".onnx": RUN_ONNX, ".pt": RUN_TORCHSCRIPT, ".pt2": RUN_PT2}[Path(file).suffix]
    return template.format(file=file)
