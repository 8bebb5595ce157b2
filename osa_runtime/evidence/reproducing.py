"""``reproduce``: an experiment from its name to its report, continued where it was stopped."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from osa_runtime.atomic import check_writable
from osa_runtime.environment import require
from osa_runtime.evidence.catalogue import KnownExperiment, find_experiment
from osa_runtime.evidence.claims import Verdict
from osa_runtime.evidence.runs import Bench, Tell


@dataclass(frozen=True)
class Reproduction:
    """An experiment that ran to its end: every claim with its verdict, and the files that were written."""

    known: KnownExperiment
    verdicts: tuple[Verdict, ...]
    files: tuple[Path, ...]

    @property
    def failed(self) -> bool:
        return any(verdict.failed for verdict in self.verdicts)


def reproduce(
    name: str,
    out: str | os.PathLike[str],
    *,
    quick: bool = False,
    data_folder: str | os.PathLike[str] | None = None,
    tell: Tell | None = None,
) -> Reproduction:
    """Run the experiment ``name`` and write its report into the folder ``out``, or continue the one that is there.

    ``quick`` runs small sizes, in seconds, to see that everything works. ``tell`` is called with a line whenever
    a run begins.
    """
    known = find_experiment(name)
    folder = Path(out)
    check_writable(folder / "report.md")
    require("Reproducing", "torch", "matplotlib", "sklearn", extra="train")

    from osa_runtime.benchmarking.machine import describe_machine
    from osa_runtime.evidence.report import write_report
    from osa_runtime.runtime.torch_session import torch_threads

    bench = Bench(name, folder, quick, tell or (lambda _: None), known.data, Path(data_folder) if data_folder else None)
    bench.open()
    experiment = known.load()
    with torch_threads(1):  # models are small: a second thread would wait for other programs at every operator
        outcome = experiment.run(bench)
    verdicts = tuple(claim.judge(outcome.measured, quick) for claim in experiment.claims(known.name))
    machine = describe_machine()
    facts = {
        "command": " ".join(["osa", "reproduce", name, *(["--quick"] if quick else []), "--out", folder.name]),
        "quick": quick,
        **{key: machine[key] for key in ("cpu", "cores", "versions")},
    }
    return Reproduction(known, verdicts, tuple(write_report(folder, known, outcome, verdicts, facts)))
