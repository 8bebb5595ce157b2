"""The settings and the result of a verification."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osa_runtime.exporters.manifest_entries import versions
from osa_runtime.parity.certificate import Certificate, Check
from osa_runtime.parity.comparison import Tolerance
from osa_runtime.parity.feeds import Case
from osa_runtime.runtime.device import DeviceSettings
from osa_runtime.verification.inside.model_parts import Array

Progress = Callable[[str], None]

SMALL = 5_000_000  # parameters; below, torch's threads cost more than they save


@dataclass(frozen=True)
class VerifySettings:
    """The settings of a verification: ``batches`` and ``lengths`` replace the sweep's own, ``inputs`` the whole sweep.

    ``outputs`` are expected outputs by case and name, in place of an eager model's. ``bisect`` is a folder for the
    reproduction of a fault, written only when something fails. ``data`` is a known data set or an .npz of images, used
    for further cases. ``calibration`` is the .npz that static ranges were measured on: they are
    measured again. ``quick`` leaves out the grid of sizes and magnitudes; ``seconds`` is its time limit.
    """

    where: DeviceSettings = field(default_factory=DeviceSettings)
    seed: int = 0
    batches: Sequence[int] | None = None
    lengths: Sequence[int] | None = None
    atol: float | None = None
    rtol: float | None = None
    inputs: Sequence[Case] | None = None
    outputs: Mapping[str, Mapping[str, Array]] | None = None
    bisect: Path | None = None
    data: str | None = None
    calibration: Path | None = None
    quick: bool = False
    seconds: float | None = None

    def tolerance(self, rtol: float) -> Tolerance:
        """The tolerance of the table, unless the user set another."""
        return Tolerance(rtol if self.rtol is None else self.rtol, self.atol or 0.0)

    def describe(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "batches": None if self.batches is None else list(self.batches),
            "lengths": None if self.lengths is None else list(self.lengths),
            "atol": self.atol,
            "rtol": self.rtol,
            "data": self.data,
            "calibration": self.calibration is not None,
            "quick": self.quick,
            "given_inputs": self.inputs is not None,
            "given_outputs": self.outputs is not None,
            "device": self.where.device,
            "threads": self.where.threads,
            "runtime": self.where.runtime,
        }


@dataclass(frozen=True)
class Run:
    """A certificate, and the arrays that it is about: the cases, and the artifact's outputs by case and name."""

    certificate: Certificate
    cases: Sequence[Case]
    outputs: Mapping[str, Mapping[str, Array]]


def certify(settings: VerifySettings, **results: Any) -> Certificate:
    alone = results["kind"] == "verify" and results["reference"] is None and settings.outputs is None
    results |= {"kind": "consistency"} if alone else {}
    now = datetime.datetime.now(datetime.UTC)
    return Certificate(
        created=now.isoformat(timespec="seconds"), settings=settings.describe(), versions=versions(), **results
    )


def not_run(
    settings: VerifySettings, kind: str, subject: Mapping[str, Any], reference: object, checks: Sequence[Check]
) -> Run:
    """The result if inputs or outputs differ: there is nothing to run."""
    known = {"kind": kind, "subject": subject, "reference": reference}
    return Run(certify(settings, **known, checks=tuple(checks), cases=()), (), {})


def fitting_threads(threads: int | None, parameters: int | None) -> int | None:
    """One thread for a small model, whose operators are too short to share, unless the user chose a number."""
    return threads or (1 if parameters is not None and parameters < SMALL else None)
