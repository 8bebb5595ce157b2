"""The check "structure": an artifact against a fresh export of its reference."""

from __future__ import annotations

import filecmp
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from osa_runtime.artifact import Artifact
from osa_runtime.errors import ArtifactError
from osa_runtime.exporters.folding import prepared
from osa_runtime.exporters.manifest_entries import versions
from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.formats import FORMATS
from osa_runtime.manifest import Manifest
from osa_runtime.parity.certificate import STRUCTURE_CHECK, Check
from osa_runtime.targets import TARGETS
from osa_runtime.verification.expectation import Expectation
from osa_runtime.verification.rounded_weights import rounded
from osa_runtime.verification.structure.differences import graph_differences, missing_weights, shown
from osa_runtime.verification.structure.graph import Array, MalformedGraphError, Model
from osa_runtime.verification.structure.manifests import (
    OF_REFERENCE,
    attention_differences,
    check_ranges,
    guessed_manifest,
    manifest_differences,
)
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
    facts = manifest_differences(manifest, again.manifest, OF_REFERENCE) if known else None
    return Structure(tuple(_despite_versions(facts, found, wanted)), (note,))


def _compiled(manifest: Manifest) -> str | None:
    """The file that a target's own compiler made of the exported program."""
    target = TARGETS.get(manifest.export.target or "")
    return target.file if target is not None and target.file in manifest.files else None


def _despite_versions(facts: Sequence[str] | None, found: Model, wanted: Model) -> Iterator[Check]:
    """Checks for other versions: the graphs may differ, but weights and the reference's own fields must agree."""
    yield _check_weights(found.weights(), wanted.weights())
    if facts is not None:
        text = shown(facts) if facts else "it says of inputs, outputs, values and classes what the reference says"
        yield Check("manifest", not facts, text)


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
