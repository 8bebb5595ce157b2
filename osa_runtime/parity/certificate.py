"""The certificate: what was verified, on what, by what, how far it was from the truth, and the verdict.

It is a plain JSON file, and needs nothing but the standard library to be read. A hash of its content shows damage and
careless editing; it is no signature.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from osa_runtime.atomic import atomic_file
from osa_runtime.errors import ArtifactError
from osa_runtime.parity.typed_json import decode

VERSION = 1
CERTIFICATE_FILE = "certificate.json"

Verdict = Literal["pass", "fail", "undecided"]


@dataclass(frozen=True)
class Check:
    """Something that either holds or does not: the files' hashes, the interface, the independence of rows."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class OutputResult:
    """One output of one case. The three distances are None where a party is missing or gave nothing to measure."""

    name: str
    verdict: Verdict
    reason: str
    tolerance: float
    needed: float | None = None
    artifact: dict[str, Any] | None = None  # from float64
    eager: dict[str, Any] | None = None  # from float64
    parity: dict[str, Any] | None = None  # the artifact from eager


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
    """What only OSA can check, for one attention layer on one case, in one of the parties."""

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
    directions: int | None = None  # how many directions AᵀA was probed in; None: all


@dataclass(frozen=True)
class UnitResult:
    """One part of the model. ``alone`` is fed with eager's input, ``cumulative`` stands at the end of all before it."""

    unit: str
    alone: float | None
    eager: float | None
    tolerance: float
    passed: bool
    reason: str
    cumulative: float | None = None
    cumulative_tolerance: float | None = None
    cumulative_passed: bool | None = None


@dataclass(frozen=True)
class Bisection:
    """The first unit that is wrong by itself, and the first behind which the signal is wrong."""

    alone: str | None
    cumulative: str | None
    case: str
    repro: str | None = None


@dataclass(frozen=True)
class Certificate:
    kind: Literal["verify", "compare"]
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

    @property
    def passed(self) -> bool:
        """Nothing failed, and of the cases at least one could be decided."""
        decided = not self.cases or any(case.verdict == "pass" for case in self.cases)
        return decided and not self.failures()

    @property
    def verdict(self) -> Literal["pass", "fail"]:
        return "pass" if self.passed else "fail"

    def failures(self) -> list[str]:
        """Everything that failed, most telling first."""
        found = [f"{check.name}: {check.detail}" for check in self.checks if not check.passed]
        found += [f"{unit.unit}: {unit.reason}" for unit in self.units if not unit.passed]
        found += [f"{layer.layer} ({layer.party}): {layer.reason}" for layer in self.layers if not layer.passed]
        for case in self.cases:
            found += [f"{case.name}: {o.name}: {o.reason}" for o in case.outputs if o.verdict == "fail"]
        return found

    @property
    def artifact_sha256(self) -> dict[str, str]:
        """The hash of every file of the artifact, by name."""
        return dict(self.subject.get("files", {}))

    def to_json(self) -> str:
        content = _plain({"version": VERSION, "verdict": self.verdict} | dataclasses.asdict(self))
        return _dump(content | {"sha256": _digest(content)}, indent=2) + "\n"

    def write(self, path: Path) -> None:
        with atomic_file(path) as temporary:
            # A file name that is no UTF-8 has surrogates in Python, for which JSON has an escape.
            temporary.write_bytes(self.to_json().encode("utf-8", "backslashreplace"))


def read_certificate(path: str | Path) -> Certificate:
    """Read what ``write`` wrote; the verdict is derived again from the results, never taken on trust."""
    where = Path(path)
    try:
        content = json.loads(where.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{where} does not exist; write it with `osa verify`.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{where} is no certificate: {error}") from error
    try:
        return _certificate(content)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{where} is no certificate of version {VERSION} ({error}); verify the artifact again."
        ) from error


def _certificate(content: Any) -> Certificate:
    if not isinstance(content, dict) or content.get("version") != VERSION or type(content["version"]) is not int:
        raise ValueError("it is of another version")
    fields = dict(content)
    if fields.pop("sha256", None) != _digest(fields):
        raise ValueError("it is damaged or was edited: its hash is not that of its content")
    verdict = fields.pop("verdict", None)
    del fields["version"]
    certificate = decode(Certificate, fields)
    files = certificate.subject.get("files")
    if not isinstance(files, dict) or not all(isinstance(value, str) for value in files.values()):
        raise ValueError("it names no files with their hashes")
    if verdict != certificate.verdict:
        raise ValueError("its verdict is not that of its results")
    return certificate


def _digest(content: dict[str, Any]) -> str:
    """Of the content, whatever its spacing and the order of its fields."""
    text = _dump(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def _dump(content: Any, **style: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, **style)


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
