"""``osa verify --evaluate``: the accuracy, as part of a certificate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osa_runtime.verification.options import Run


def check_data(data: str | None) -> None:
    """Before the work: data that cannot be read."""
    if data is not None:
        from osa_runtime.evaluation.samples import read_samples

        read_samples(data)


def evaluated(run: Run, artifact: Path, data: str | None, against: Path | None, progress: Callable[[str], None]) -> Run:
    """With the accuracy; what is known to be wrong is not measured."""
    if data is None or run.certificate.failed:
        return run
    from osa_runtime.evaluation import evaluate

    found = evaluate(artifact, data, against, progress=lambda model, done, n: progress(f"{model}: {done} of {n}"))
    return dataclasses.replace(run, certificate=run.certificate.evaluated(found))
