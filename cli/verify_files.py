"""The files and flags of ``osa verify`` and ``osa compare``: read and checked before the work, written after it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from osa_runtime.errors import InputError

if TYPE_CHECKING:
    from osa_runtime.verification.options import Run, VerifyOptions


@dataclass(frozen=True)
class Files:
    """Where results go. ``folder`` is the artifact that gets a certificate of its own."""

    report: Path | None = None
    html: Path | None = None
    inputs: Path | None = None
    outputs: Path | None = None
    folder: Path | None = None

    def check(self) -> None:
        """Before the long work: a name that will not do, or a place where nothing can be written."""
        from osa_runtime.atomic import check_writable
        from osa_runtime.parity.certificate import CERTIFICATE_FILE

        taken: dict[Path, str] = {}
        for flag, path, suffix in (
            ("--report", self.report, ".json"),
            ("--html", self.html, ".html"),
            ("--save-inputs", self.inputs, ".npz"),
            ("--save-outputs", self.outputs, ".npz"),
        ):
            if path is None:
                continue
            if path.suffix != suffix:
                raise InputError(f"{flag} is {path}, expected a name that ends in {suffix}.")
            check_writable(path)
            other = taken.setdefault(path.absolute(), flag)
            if other != flag:
                raise InputError(f"{other} and {flag} are both {path}; expected two names.")
        if self.folder is not None and not self.folder.is_dir():
            raise InputError(f"--certify writes into an exported folder, but {self.folder} is none; use --report.")
        if self.folder is not None:
            check_writable(self.folder / CERTIFICATE_FILE)
        if self.html is not None:
            from osa_runtime.plotting import require_matplotlib

            require_matplotlib()

    def write(self, run: Run) -> None:
        from osa_runtime.parity.certificate import CERTIFICATE_FILE
        from osa_runtime.verification.cases import write_cases, write_outputs

        if self.inputs is not None:
            write_cases(self.inputs, run.cases)
        if self.outputs is not None:
            write_outputs(self.outputs, run.outputs)
        if self.report is not None:
            run.certificate.write(self.report)
        if self.folder is not None:
            run.certificate.write(self.folder / CERTIFICATE_FILE)
        if self.html is not None:
            from osa_runtime.verification.page.document import write_page

            write_page(run.certificate, self.html)

    def written(self) -> list[Path]:
        from osa_runtime.parity.certificate import CERTIFICATE_FILE

        own = self.folder / CERTIFICATE_FILE if self.folder is not None else None
        return [path for path in (self.report, own, self.html, self.inputs, self.outputs) if path is not None]


def sizes_of(flag: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"{flag} is {text!r}, expected whole numbers from 1 on, with commas between them: 1,8.")
    return [int(part) for part in parts]


def options_of(
    artifact: Path,
    batches: list[int] | None,
    lengths: list[int] | None,
    judge: tuple[int, float | None, float | None, Path | None],
    loaded: tuple[Path | None, Path | None],
    where: tuple[str, int | None, bool],
    more: tuple[str | None, bool, Path | None] = (None, False, None),
) -> VerifyOptions:
    from osa_runtime.runtime.device import Where
    from osa_runtime.verification.cases import read_cases, read_outputs
    from osa_runtime.verification.options import VerifyOptions
    from osa_runtime.verification.subject import Subject

    seed, rtol, atol, bisect = judge
    inputs, outputs = loaded
    if inputs is not None and (batches is not None or lengths is not None):
        raise InputError("--load-inputs brings its own sizes; leave out --batch and --tokens.")
    if outputs is not None and inputs is None:
        raise InputError("--load-outputs needs the inputs that they belong to: --load-inputs.")
    for flag, value in (("--rtol", rtol), ("--atol", atol)):
        if value is not None and not math.isfinite(value):
            raise InputError(f"{flag} is {value}, expected a finite number of 0 or more.")
    at = Where(*where)
    cases, expected = None, None
    if inputs is not None:
        subject = Subject.open(artifact, Where())
        with subject.session:
            cases = read_cases(inputs, subject.session)
            expected = read_outputs(outputs, subject.session) if outputs is not None else None
    return VerifyOptions(
        where=at,
        seed=seed,
        batches=batches,
        lengths=lengths,
        atol=atol,
        rtol=rtol,
        inputs=cases,
        outputs=expected,
        bisect=bisect,
        data=more[0],
        quick=more[1],
        calibration=more[2],
    )
