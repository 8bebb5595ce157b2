"""The files that `osa verify` and `osa compare` read and write, accuracy and signature included."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from osa_runtime.errors import InputError

if TYPE_CHECKING:
    from osa_runtime.verification.options import Run, VerifyOptions


@dataclass(frozen=True)
class Files:
    """Destinations of the results. ``folder`` is the artifact that gets a certificate of its own."""

    report: Path | None = None
    html: Path | None = None
    inputs: Path | None = None
    outputs: Path | None = None
    folder: Path | None = None

    def check(self) -> None:
        """Refuse names that are not valid and paths that cannot be written, before the long work."""
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
            raise InputError(f"--certify writes into an exported folder, but {self.folder} is not one; use --report.")
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


def options_of(
    artifact: Path,
    batches: tuple[int, ...] | None,
    lengths: tuple[int, ...] | None,
    judge: tuple[int, float | None, float | None, Path | None],
    loaded: tuple[Path | None, Path | None],
    where: tuple[str, int | None, bool, str | None],
    more: tuple[str | None, bool, Path | None] = (None, False, None),
) -> VerifyOptions:
    from osa_runtime.runtime.device import DeviceOptions
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
    at = DeviceOptions(*where)
    cases, expected = None, None
    if inputs is not None:
        subject = Subject.open(artifact, DeviceOptions())
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


def check_data(data: str | None) -> None:
    """Refuse data that cannot be read, before any work is done."""
    if data is not None:
        from osa_runtime.evaluation.classifiers import read_samples

        read_samples(data)


def evaluated(run: Run, artifact: Path, data: str | None, against: Path | None, progress: Callable[[str], None]) -> Run:
    """The certificate with the accuracy, which is not measured for a model that failed."""
    if data is None or run.certificate.failed:
        return run
    from osa_runtime.evaluation import evaluate

    found = evaluate(artifact, data, against, progress=lambda model, done, n: progress(f"{model}: {done} of {n}"))
    return dataclasses.replace(run, certificate=run.certificate.evaluated(found))


@dataclass(frozen=True)
class Signer:
    """Signs certificates that are a PASS, and no others."""

    key: Any = None

    @classmethod
    def of_key(cls, path: Path | None, options: VerifyOptions, *, certify: bool, known: bool) -> Signer:
        if path is None:
            return cls()
        from osa_runtime.parity.signing import read_private_key, settings_objection

        if not certify:
            raise InputError("--sign signs the certificate that --certify writes; give both.")
        if not known:
            raise InputError("--sign signs a PASS, which needs a reference; add --against.")
        reason = settings_objection(options.describe())
        if reason is not None:
            raise InputError(
                f"--sign signs only certificates that `osa serve --require-certificate` accepts, but {reason}."
            )
        return cls(read_private_key(path))

    def signed(self, run: Run) -> Run:
        if self.key is None:
            return run
        if not run.certificate.passed:
            typer.echo("The certificate is not signed: only a PASS is.", err=True)
            return run
        from osa_runtime.parity.signing import sign

        return dataclasses.replace(run, certificate=sign(run.certificate, self.key))
