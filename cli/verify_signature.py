"""``osa verify --sign``: whether there will be something to sign is known before the work."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from osa_runtime.errors import InputError

if TYPE_CHECKING:
    from osa_runtime.verification.options import Run, VerifyOptions


@dataclass(frozen=True)
class Signer:
    """Signs what passed, and nothing else."""

    key: Any = None

    @classmethod
    def of_key(cls, path: Path | None, options: VerifyOptions, *, certify: bool, known: bool) -> Signer:
        if path is None:
            return cls()
        from osa_runtime.parity.signing import read_private_key
        from osa_runtime.parity.trust import settings_objection

        if not certify:
            raise InputError("--sign signs the certificate that --certify writes; give both.")
        if not known:
            raise InputError("--sign signs a PASS, and without a reference there is none; give --against.")
        reason = settings_objection(options.describe())
        if reason is not None:
            raise InputError(f"--sign signs only what `osa serve --require-certificate` takes, but {reason}.")
        return cls(read_private_key(path))

    def signed(self, run: Run) -> Run:
        if self.key is None:
            return run
        if not run.certificate.passed:
            typer.echo("The certificate is not signed: only a PASS is.", err=True)
            return run
        from osa_runtime.parity.signing import sign

        return dataclasses.replace(run, certificate=sign(run.certificate, self.key))
