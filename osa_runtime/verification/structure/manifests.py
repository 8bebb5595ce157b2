"""The manifests of two exports, field by field, and the recorded ranges of a static quantisation, measured again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import onnx

from osa_runtime.artifact import Artifact
from osa_runtime.manifest import Manifest
from osa_runtime.onnx_layers import with_projections
from osa_runtime.parity.certificate import Check
from osa_runtime.quantization.activations import measure_ranges
from osa_runtime.quantization.calibration import read_calibration
from osa_runtime.quantization.weights import select
from osa_runtime.verification.structure.differences import shown
from osa_runtime.verification.structure.graph import Model
from osa_runtime.verification.structure.scopes import main_scope
from osa_runtime.verification.subject import Subject

# Hashes are checked with the files, where a model came from is a note, and versions decide what a difference means.
ELSEWHERE = {"files", "source", "versions", "attentions"}
# Measured on the user's inputs, or by other versions.
MEASURED = {"quantization.deviation", "quantization.calibration", "quantization.versions"}
# Fields that follow from the reference, whatever exports it.
OF_REFERENCE = {
    "format",
    "inputs",
    "outputs",
    "axes",
    "values",
    "preprocessing",
    "class_names",
    "parameters",
    "dtype",
    "roles",
}


def manifest_differences(found: Manifest, expected: Manifest, only: set[str] | None = None) -> list[str]:
    """The differences, with names such as "preprocessing.images.mean"."""
    mine, theirs = dataclasses.asdict(found), dataclasses.asdict(expected)
    names = [name for name in theirs if name not in ELSEWHERE and (only is None or name in only)]
    return [text for name in names for text in _differences(name, mine[name], theirs[name])]


def attention_differences(found: Manifest, expected: Manifest, mine: Model, theirs: Model) -> list[str]:
    """Differences of the attention calls, compared by what their names stand for in the graphs."""
    ours, others = _calls(found, mine), _calls(expected, theirs)
    if len(ours) != len(others):
        return [f"manifest attentions has {len(ours)} calls, expected {len(others)}"]
    wrong = [b["name"] for a, b in zip(ours, others, strict=True) if _plain(a) != _plain(b)]
    return [f"manifest attentions of {name} does not name the values of that layer" for name in wrong]


def _calls(manifest: Manifest, model: Model) -> list[dict[str, Any]]:
    known = main_scope(model).digests
    return [
        dataclasses.asdict(call)
        | {"output": known.get(call.output), "squarings": call.squarings and known.get(call.squarings)}
        | {"inputs": [known.get(name) for name in call.inputs]}
        for call in manifest.attentions
    ]


def _differences(where: str, found: Any, expected: Any) -> Iterator[str]:
    if where in MEASURED:
        return
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in {**expected, **found}:
            yield from _differences(f"{where}.{key}", found.get(key), expected.get(key))
    elif _plain(found) != _plain(expected):
        yield f"manifest {where} is {found!r}, expected {expected!r}"


def _plain(value: Any) -> Any:
    """The value as JSON holds it, without tuples, and with 1, 1.0 and True distinct."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return (type(value).__name__, value) if not isinstance(value, dict) else {k: _plain(v) for k, v in value.items()}


def guessed_manifest(subject: Subject) -> Manifest:
    """A manifest with what the file shows, and defaults for the rest."""
    known = Manifest(subject.format, subject.inputs, subject.session.outputs, 0, dtype=subject.dtype)
    if subject.format != "onnx":
        return known
    from osa_runtime.exporters.settings import OPSETS
    from osa_runtime.onnx_files import read_onnx

    model = read_onnx(subject.session.path)
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)
    if opset not in OPSETS:
        opset = None  # weights can still be compared
    kept = any(node.domain not in ("", "ai.onnx") for node in model.graph.node)
    return replace(known, opset=opset, functions="keep" if kept else "inline")


ROUNDING = 1e-4  # of a range: a hundredth of an 8-bit step, and more than another machine's order of summation


def check_ranges(plain: Artifact, manifest: Manifest, examples: Path) -> Check:
    """Measure again on ``plain``, the fresh export that the artifact should have been quantised from."""
    known, said = read_calibration(examples, plain), manifest.quantization
    assert said is not None
    model, attentions = with_projections(onnx.load(plain.model_path), plain.manifest.attentions)
    selection = select(model, attentions, said.kept)
    measured = measure_ranges(model, selection.products, known.feeds)
    recorded = {} if said.calibration is None else asdict(said.calibration)
    wrong = [
        f"calibration.{name} is {recorded.get(name)!r}, expected {value!r}"
        for name, value in asdict(known.describe()).items()
        if recorded.get(name) != value
    ]
    wrong += _range_differences(said.activation_ranges, measured)
    text = f"{examples.name} has the recorded hash, and the ranges measured on it are the recorded ones"
    return Check("ranges", not wrong, shown(wrong) if wrong else text)


def _range_differences(
    recorded: Mapping[str, Sequence[float]], measured: Mapping[str, Sequence[float]]
) -> Iterator[str]:
    for name, (low, high) in measured.items():
        found = recorded.get(name, (0.0, 0.0))
        if max(abs(found[0] - low), abs(found[1] - high)) > ROUNDING * (high - low):
            yield f"the range of {name} is {found[0]:.6g} to {found[1]:.6g}, measured {low:.6g} to {high:.6g}"
