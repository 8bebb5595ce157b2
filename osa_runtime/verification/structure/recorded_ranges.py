"""The check "ranges": the recorded ranges of a static quantisation, measured again on its examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import onnx

from osa_runtime.artifact import Artifact, Manifest
from osa_runtime.parity.certificate import Check
from osa_runtime.quantization.activations import measure_ranges
from osa_runtime.quantization.calibration import read_calibration
from osa_runtime.quantization.selection import select
from osa_runtime.verification.structure.differences import shown

ROUNDING = 1e-4  # of a range: a hundredth of an 8-bit step, and more than another machine's order of summation


def check_ranges(plain: Artifact, manifest: Manifest, examples: Path) -> Check:
    """Measure again on ``plain``, the fresh export that the artifact should have been quantised from."""
    known, said = read_calibration(examples, plain), manifest.quantization
    assert said is not None
    model = onnx.load(plain.model_path)
    selection = select(model, plain.manifest.attentions, said.kept)
    measured = measure_ranges(model, selection.products, known.feeds)
    recorded = {} if said.calibration is None else asdict(said.calibration)
    wrong = [
        f"calibration.{name} is {recorded.get(name)!r}, expected {value!r}"
        for name, value in asdict(known.describe()).items()
        if recorded.get(name) != value
    ]
    wrong += _differences(said.activation_ranges, measured)
    text = f"{examples.name} has the recorded hash, and the ranges measured on it are the recorded ones"
    return Check("ranges", not wrong, shown(wrong) if wrong else text)


def _differences(recorded: Mapping[str, Sequence[float]], measured: Mapping[str, Sequence[float]]) -> Iterator[str]:
    for name, (low, high) in measured.items():
        found = recorded.get(name, (0.0, 0.0))
        if max(abs(found[0] - low), abs(found[1] - high)) > ROUNDING * (high - low):
            yield f"the range of {name} is {found[0]:.6g} to {found[1]:.6g}, measured {low:.6g} to {high:.6g}"
