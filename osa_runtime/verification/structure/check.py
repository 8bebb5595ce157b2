"""The check "structure": an artifact against a fresh export of its reference, graph, weights and manifest."""

from __future__ import annotations

import dataclasses
import filecmp
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from torch import nn

from osa_runtime.artifact import Artifact
from osa_runtime.errors import ArtifactError
from osa_runtime.exporters.folding import prepared
from osa_runtime.exporters.manifest_entries import versions
from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.formats import FORMATS
from osa_runtime.manifest import Manifest
from osa_runtime.onnx_layers import with_projections
from osa_runtime.parity.certificate import STRUCTURE_CHECK, Check
from osa_runtime.quantization.activations import measure_ranges, read_calibration
from osa_runtime.quantization.weights import select
from osa_runtime.targets import TARGETS
from osa_runtime.verification.expectation import Expectation
from osa_runtime.verification.rounded_weights import rounded
from osa_runtime.verification.structure.differences import graph_differences, missing_weights, shown
from osa_runtime.verification.structure.graph import Array, MalformedGraphError, Model, main_scope
from osa_runtime.verification.subject import Subject

EXPORTING = ("osa-runtime", "torch", "onnx", "onnxscript", "onnx-ir", "numpy")  # packages whose versions shape a graph


@dataclass(frozen=True)
class Structure:
    """The checks of the structure, or ``notes`` on why it was not decided.

    ``rounded`` is the reference of a quantised artifact with its matrices rounded in the same way.
    """

    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    rounded: nn.Module | None = None


def check_structure(subject: Subject, expected: Expectation, examples: Path | None = None) -> Structure:
    """Compare the structure. An export that cannot be repeated or read fails, whichever versions the manifest names.

    ``examples`` are those that static ranges were measured on.
    """
    manifest = subject.session.manifest or guessed_manifest(subject)
    with tempfile.TemporaryDirectory(prefix="osa-structure-") as folder:
        try:
            again, reference = expected.repeat(manifest, Path(folder) / "again"), None
            measured = () if examples is None else (check_ranges(again, manifest, examples),)
            if manifest.quantization:
                plain, again = again, _quantized(again, manifest, Path(folder) / "quantized")
                reference = rounded(expected.model, plain.model_path, again.model_path)
        except Exception as error:  # noqa: BLE001 - torch and onnx raise anything on nonsensical settings
            why = f"the export cannot be repeated: {str(error) or type(error).__name__}"
            return _unrepeatable(subject, expected, why)
        try:
            found = _compared(subject, manifest, again)
        except (MalformedGraphError, ArtifactError) as error:
            found = _failed(f"the model cannot be compared: {error}")
        return replace(found, checks=(*found.checks, *measured), rounded=reference)


def _quantized(source: Artifact, manifest: Manifest, out: Path) -> Artifact:
    from osa_runtime.quantization import quantize

    said = manifest.quantization
    assert said is not None
    return quantize(
        source.folder,
        out,
        weights=said.weights,
        activations=said.activations,
        ranges=said.activation_ranges,  # the numbers decide whether they are good
        keep=said.kept,
    ).artifact


def _compared(subject: Subject, manifest: Manifest, again: Artifact) -> Structure:
    known = subject.artifact is not None
    static = manifest.quantization is not None and manifest.quantization.activations == "static"
    fresh = "a fresh quantisation with the recorded ranges" if static else "a fresh export"
    in_manifest = manifest_differences(manifest, again.manifest) if known else []
    if not in_manifest and _same_files(subject, again):
        same = not known or manifest.attentions == again.manifest.attentions
        text = f"every file is, byte for byte, that of {fresh}" if same else "manifest attentions are others"
        return Structure((Check(STRUCTURE_CHECK, same, text),))
    wanted, found = (FORMATS[manifest.format].part("graph")(path) for path in (again.model_path, subject.session.path))
    differences = [*in_manifest, *graph_differences(found, wanted)]
    compiled = _compiled(manifest) if known else None
    if known and (extra := sorted({*manifest.files} - {*again.manifest.files, compiled})):
        differences.append(f"manifest files has {', '.join(extra)}, which {fresh} does not have")
    if known and not differences:
        differences = attention_differences(manifest, again.manifest, found, wanted)
    if not differences and compiled is not None:
        note = f"numbers only: {compiled} was compiled for {manifest.export.target}, and only its source is compared"
        return Structure((Check(STRUCTURE_CHECK, True, f"graph, weights and manifest are those of {fresh}"),), (note,))
    if not differences:
        return Structure((Check(STRUCTURE_CHECK, True, f"graph, weights and manifest are those of {fresh}"),))
    others = _other_versions(manifest) if known else ["a file without a manifest"]
    if not others:
        return _failed(shown(differences))
    note = f"numbers only: {shown(differences, 1)}; that may be due to {', '.join(others)}"
    claims = manifest_differences(manifest, again.manifest, OF_REFERENCE) if known else None
    return Structure(tuple(_despite_versions(claims, found, wanted)), (note,))


def _compiled(manifest: Manifest) -> str | None:
    """The file that a target's own compiler made of the exported program."""
    target = TARGETS.get(manifest.export.target or "")
    return target.file if target is not None and target.file in manifest.files else None


def _despite_versions(claims: Sequence[str] | None, found: Model, wanted: Model) -> Iterator[Check]:
    """Checks for other versions: the graphs may differ, but weights and the reference's own fields must agree."""
    yield _check_weights(found.weights(), wanted.weights())
    if claims is not None:
        text = shown(claims) if claims else "it says of inputs, outputs, values and classes what the reference says"
        yield Check("manifest", not claims, text)


def _check_weights(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> Check:
    wrong = missing_weights(found, wanted)
    return Check("weights", not wrong, shown(wrong) if wrong else "all weights of the reference are in the artifact")


def _unrepeatable(subject: Subject, expected: Expectation, why: str) -> Structure:
    """Checks for an export that cannot be repeated: a file alone has no manifest to be wrong, but has weights."""
    if subject.artifact is not None:
        return _failed(why)
    try:
        found = FORMATS[subject.format].part("graph")(subject.session.path)
    except (MalformedGraphError, ArtifactError) as error:
        return _failed(f"the model cannot be compared: {error}")
    settings = ExportSettings(subject.format, dtype="fp16" if subject.dtype == "fp16" else "fp32")
    matrices = {n: p.numpy() for n, p in prepared(expected.model, settings).named_parameters() if p.dim() == 2}
    return Structure((_check_weights(found.weights(), matrices),), (f"numbers only: {why}",))


def _failed(why: str) -> Structure:
    return Structure((Check(STRUCTURE_CHECK, False, why),))


def _other_versions(manifest: Manifest) -> list[str]:
    """The packages that shape a graph and have other versions; the build (+cpu) does not count."""
    now = versions()
    recorded = manifest.versions | (manifest.quantization.versions if manifest.quantization is not None else {})
    names = (*EXPORTING, *(("onnxruntime", "onnxruntime-gpu") if manifest.quantization else ()))
    said = {name: recorded.get(name, "of no known version") for name in names if name in now}
    return [
        f"{name} {then}, where {now[name]} is installed"
        for name, then in said.items()
        if then.partition("+")[0] != now[name].partition("+")[0]
    ]


def _same_files(subject: Subject, again: Artifact) -> bool:
    names = sorted(again.manifest.files)
    folder = subject.session.path.parent
    if subject.artifact is not None and sorted(subject.artifact.manifest.files) != names:
        return False
    if subject.artifact is None:
        names = [name for name in names if name == again.model_path.name]
        return names == sorted(again.manifest.files) and filecmp.cmp(subject.session.path, again.model_path, False)
    paths = [(folder / name, again.folder / name) for name in names]
    return all(mine.is_file() and filecmp.cmp(mine, theirs, shallow=False) for mine, theirs in paths)


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
