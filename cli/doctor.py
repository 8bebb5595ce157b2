"""``osa doctor``: a check of what this machine can run, with a remedy for what it cannot."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Show what this machine can run, and how to repair what it cannot.

    Starts each ONNX Runtime provider instead of trusting the list that the wheel was built with.
    Exits with 0 when models can be run here and with 3 when they cannot.

    [bold]Examples[/bold]

    [cyan]osa doctor[/cyan]

    [cyan]osa doctor --json | jq .providers[/cyan]
    """
    from osa_runtime.diagnosis import diagnose, render

    diagnosis = diagnose()
    typer.echo(json.dumps(diagnosis.as_dict(), indent=2) if as_json else render(diagnosis))
    if diagnosis.problems:
        raise typer.Exit(3)
