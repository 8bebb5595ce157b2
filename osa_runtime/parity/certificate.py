"""The certificate: the subject of a verification, its cases, its parties, their distances, and the verdict.

It is a plain JSON file, and needs nothing but the standard library to be read. A hash of its content shows damage and
careless editing; a signature (``signing.py``) proves its origin.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from osa_runtime.atomic import atomic_file
from osa_runtime.errors import ArtifactError
from osa_runtime.parity.evaluation import Evaluation
from osa_runtime.typed_json import decode

VERSION = 2
CERTIFICATE_FILE = "certificate.json"

SIGNATURE = re.compile("[0-9a-f]{128}")
STRUCTURE_CHECK = "structure"  # the name of the check that compares the artifact's graph with a fresh export's

Verdict = Literal["pass", "fail", "undecided"]
Basis = Literal["structure and numbers", "numbers only", "no reference"]


@dataclass(frozen=True)
class Check:
    """Something that either holds or does not: the files' hashes, the interface, the independence of rows."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class OutputResult:
    """One output of one case. The three distances are None if a party is missing or has nothing to measure."""

    name: str
    verdict: Verdict
    reason: str
    tolerance: float
    needed: float | None = None
    artifact: dict[str, Any] | None = None  # from float64
    eager: dict[str, Any] | None = None  # from float64
    parity: dict[str, Any] | None = None  # the artifact from eager

    @property
    def remark(self) -> str:
        """The reason; empty for a pass with no distance above the tolerance, where the figures are enough."""
        found = [metrics.get("max_rel") for metrics in (self.artifact, self.eager, self.parity) if metrics]
        limit = math.inf if self.tolerance is None else self.tolerance
        plain = self.verdict == "pass" and all(distance is None or distance <= limit for distance in found)
        return "" if plain else self.reason


@dataclass(frozen=True)
class CaseResult:
    kind: str
    sizes: dict[str, int]
    norm: float | None
    outputs: tuple[OutputResult, ...]

    @property
    def name(self) -> str:
        return " ".join([self.kind, *(f"{axis}={size}" for axis, size in self.sizes.items())])

    @property
    def verdict(self) -> Verdict:
        verdicts = {output.verdict for output in self.outputs}
        return "fail" if "fail" in verdicts else "undecided" if "undecided" in verdicts else "pass"


@dataclass(frozen=True)
class HeadResult:
    """One head of one layer, the worst over the batch: ‖AᵀA − I‖₂, ‖Av‖/‖v‖, ‖S‖₂, distance from exp(S)·V."""

    defect: float
    ratio_low: float
    ratio_high: float
    norm: float
    error: float


@dataclass(frozen=True)
class LayerResult:
    """The checks that only OSA allows, for one attention layer on one case, in one of the parties."""

    layer: str
    party: Literal["artifact", "eager", "reference"]
    case: str
    heads: tuple[HeadResult, ...]
    squarings: int
    bound: float  # the layer's own upper bound of ‖S‖₂, from which it takes the number of squarings
    largest_norm: float | None
    tolerance: float
    passed: bool
    reason: str
    directions: int | None = None  # the number of probed directions of AᵀA; None: all


@dataclass(frozen=True)
class UnitResult:
    """One part of the model, on the case where it is closest to its limit or beyond it.

    ``alone`` is its error on eager's input, ``cumulative`` the error after it in a run of the whole model.
    """

    unit: str
    alone: float | None
    eager: float | None
    tolerance: float
    passed: bool
    reason: str
    cumulative: float | None = None
    cumulative_tolerance: float | None = None
    cumulative_passed: bool | None = None
    case: str = ""


@dataclass(frozen=True)
class Bisection:
    """The first unit that is wrong by itself, and the first after which the signal is wrong."""

    alone: str | None
    cumulative: str | None
    case: str
    repro: str | None = None


@dataclass(frozen=True)
class Signature:
    """The signature of the canonical content, hexadecimal; ``key`` is the fingerprint of the key that made it."""

    algorithm: Literal["ed25519"]
    key: str
    value: str


@dataclass(frozen=True)
class Certificate:
    kind: Literal["verify", "consistency", "compare"]  # consistency: verify without a reference
    created: str
    subject: dict[str, Any]
    reference: dict[str, Any] | None
    settings: dict[str, Any]
    versions: dict[str, str]
    checks: tuple[Check, ...]
    cases: tuple[CaseResult, ...]
    layers: tuple[LayerResult, ...] = ()
    units: tuple[UnitResult, ...] = ()
    bisection: Bisection | None = None
    histogram: dict[str, list[float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    evaluation: Evaluation | None = None
    signature: Signature | None = None

    @property
    def basis(self) -> Basis:
        """The basis of the verdict. If structures could not be compared, there is a note and no such check."""
        if self.reference is None and not self.settings.get("given_outputs"):
            return "no reference"
        compared = any(check.name == STRUCTURE_CHECK for check in self.checks)
        return "structure and numbers" if compared else "numbers only"

    @property
    def verdict(self) -> Literal["pass", "consistent", "fail"]:
        """The verdict; "consistent", not "pass", without a reference: the artifact agrees with itself and with OSA."""
        if self.failures() or all(case.verdict != "pass" for case in self.cases):
            return "fail"
        return "consistent" if self.basis == "no reference" else "pass"

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"

    @property
    def failed(self) -> bool:
        """True if something is wrong, or nothing could be decided."""
        return self.verdict == "fail"

    def failures(self) -> list[str]:
        """Everything that failed, the most specific first."""
        found = [f"{check.name}: {check.detail}" for check in self.checks if not check.passed]
        found += [f"{unit.unit}: {unit.reason}" for unit in self.units if not unit.passed]
        found += [f"{layer.layer} ({layer.party}): {layer.reason}" for layer in self.layers if not layer.passed]
        for case in self.cases:
            found += [f"{case.name}: {o.name}: {o.reason}" for o in case.outputs if o.verdict == "fail"]
        return found

    def evaluated(self, evaluation: Evaluation) -> Certificate:
        """Add the accuracy on labelled data, which must not be much worse than the reference's."""
        check = Check("accuracy", evaluation.acceptable, str(evaluation))
        notes = (*self.notes, *evaluation.notes)
        return dataclasses.replace(self, evaluation=evaluation, checks=(*self.checks, check), notes=notes)

    @property
    def artifact_sha256(self) -> dict[str, str]:
        """The hash of every file of the artifact, its manifest included, by name."""
        return dict(self.subject.get("files", {}))

    def canonical(self) -> bytes:
        """The content without the signature, as bytes that do not depend on spacing or order."""
        return _canonical(self._content())

    def _content(self) -> dict[str, Any]:
        content = dataclasses.asdict(self)
        del content["signature"]
        plain: dict[str, Any] = _plain(self._derived() | content)
        return plain

    def to_json(self) -> str:
        content = self._content()
        signature = dataclasses.asdict(self.signature) if self.signature is not None else None
        return _dump(content | {"signature": signature, "sha256": _digest(content)}, indent=2) + "\n"

    def _derived(self) -> dict[str, Any]:
        """Fields that are written for human readers, and derived again when the file is read."""
        return {"version": VERSION, "verdict": self.verdict, "basis": self.basis}

    def write(self, path: Path) -> None:
        with atomic_file(path) as temporary:
            # A file name that is not UTF-8 has surrogates in Python, for which JSON has an escape.
            temporary.write_bytes(self.to_json().encode("utf-8", "backslashreplace"))


def read_certificate(path: str | Path) -> Certificate:
    """Read what ``write`` wrote; verdict and basis are derived again from the results, never taken on trust."""
    where = Path(path)
    try:
        content = json.loads(where.read_text(encoding="utf-8"), object_pairs_hook=_object)
    except FileNotFoundError:
        raise ArtifactError(f"{where} does not exist; write it with `osa verify`.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{where} is not a certificate: {error}") from error
    try:
        return _certificate(content)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{where} is not a certificate of version {VERSION} ({error}); verify the artifact again."
        ) from error


def _certificate(content: Any) -> Certificate:
    if not isinstance(content, dict) or content.get("version") != VERSION or type(content["version"]) is not int:
        raise ValueError("it is of another version")
    fields = dict(content)
    digest, signature = fields.pop("sha256", None), fields.pop("signature", "missing")
    if digest != _digest(fields):
        raise ValueError("it is damaged or was edited: its hash is not that of its content")
    said = {name: fields.pop(name, None) for name in ("version", "verdict", "basis")}
    certificate = decode(Certificate, fields | {"signature": signature}, "certificate", whole=True)
    files = certificate.subject.get("files")
    if not isinstance(files, dict) or not all(isinstance(value, str) for value in files.values()):
        raise ValueError("it names no files with their hashes")
    if certificate.signature is not None and not SIGNATURE.fullmatch(certificate.signature.value):
        raise ValueError("its signature is not one of Ed25519")
    if (certificate.kind == "consistency") != (certificate.basis == "no reference"):
        raise ValueError("its kind is not that of its reference")
    if said != certificate._derived():
        raise ValueError("its verdict or basis is not that of its results")
    return certificate


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()


def _canonical(content: dict[str, Any]) -> bytes:
    return _dump(content, sort_keys=True, separators=(",", ":")).encode("utf-8", "backslashreplace")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields by name; a repeated name is an error, because readers disagree about it."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it has a field twice")
    return found


def _dump(content: Any, **style: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, **style)


def _plain(value: Any) -> Any:
    """The value with NaN and infinity, which JSON does not have, as null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


WORDS = {"pass": "PASS", "consistent": "CONSISTENT", "fail": "FAIL"}

SAME_STRUCTURE = (
    "graph, weights and settings are those of a fresh export of the reference, and the outputs agree with it on "
    "every case that could be decided"
)
SAME_NUMBERS = (
    "the outputs agree with the reference on every case that could be decided; the structure was not compared, so a "
    "fault that none of these cases meets would not be seen"
)
SAME_OUTPUTS = (
    "the outputs agree with the given ones on the given inputs; the structure was not compared, and nothing says "
    "where the given outputs come from"
)
SAME_ARTIFACTS = (
    "the two artifacts agree on every case that could be decided; whether the reference itself is right was not checked"
)
NO_CONTRADICTION = (
    "nothing contradicts itself: the outputs are finite, rows do not disturb each other, and attention agrees with "
    "its definition; the weights may be any, because it was not compared with a trained model"
)
WRONG = "at least one finding contradicts the reference, the manifest or the definition of the model"
UNDECIDED = "no case could be decided"


def verdict_title(certificate: Certificate) -> str:
    """The verdict with its basis: "PASS (structure and numbers)"."""
    word = WORDS[certificate.verdict]
    return word if certificate.failed else f"{word} ({certificate.basis})"


def verdict_meaning(certificate: Certificate) -> str:
    """The sentence on what the verdict proves."""
    if certificate.failed:
        return WRONG if certificate.failures() else UNDECIDED
    if certificate.basis == "no reference":
        return NO_CONTRADICTION
    if certificate.basis == "structure and numbers":
        return SAME_STRUCTURE
    if certificate.kind == "compare":
        return SAME_ARTIFACTS
    return SAME_NUMBERS if certificate.reference is not None else SAME_OUTPUTS
