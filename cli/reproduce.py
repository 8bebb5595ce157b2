"""``osa reproduce``: repeat an experiment of the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def reproduce(
    name: Annotated[str, typer.Argument(help="The experiment, or `list` for all of them.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the report; a stopped experiment continues there.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, in seconds: a trial, not evidence.")] = False,
    data_folder: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", help="Folder of fetched data sets.", show_default="$OSA_DATA or ~/.cache/osa-runtime"
        ),
    ] = None,
) -> None:
    """Repeat an experiment of the papers, and judge their claims by bounds that were set before it ran.

    Writes report.md, its figures and results.json into --out. If it is stopped, the same command continues: what is
    finished is not run again. Exits with 1 when a claim fails.

    [bold]Examples[/bold]

    [cyan]osa reproduce list[/cyan]

    [cyan]osa reproduce propagation --out evidence/propagation[/cyan]
    """
    from osa_runtime.errors import InputError
    from osa_runtime.evidence import EXPERIMENTS, find_experiment
    from osa_runtime.evidence import reproduce as run_experiment

    if name == "list":
        for known in EXPERIMENTS.values():
            typer.echo(f"{known.name:<14} {known.time:<7} {known.question} ({known.paper})")
        return
    find_experiment(name)
    if out is None:
        raise InputError("An experiment needs a folder for its report: --out FOLDER.")
    try:
        done = run_experiment(name, out, quick=quick, data_folder=data_folder, tell=typer.echo)
    except KeyboardInterrupt:
        typer.echo("Stopped; the same command continues with what is not finished.", err=True)
        raise
    for verdict in done.verdicts:
        value = "not measured" if verdict.value is None else f"{verdict.value:.3g}"
        typer.echo(f"{verdict.result:<10}  {verdict.claim.text}: {value}, expected {verdict.claim.bound}")
    typer.echo(f"Wrote {', '.join(str(path) for path in done.files)}")
    if done.failed:
        raise typer.Exit(1)
