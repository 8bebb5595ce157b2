"""``osa inspect``: the contents of an exported artifact or an ONNX file, and the providers that run it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def inspect(
    artifact: Annotated[Path, typer.Argument(help="An exported folder, or an .onnx file.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    graph: Annotated[
        Path | None, typer.Option("--graph", help="Draw the main graph into this .png or .svg.", show_default=False)
    ] = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(
            "--provider",
            help="cpu or cuda: the provider whose kernels are listed; may be repeated.",
            show_default="cpu and cuda",
        ),
    ] = None,
) -> None:
    """Show a model's inputs and outputs, functions, operators and size, and the nodes that a provider cannot run.

    The model is not run. ONNX Runtime lists its own kernels; where CUDA does not load, a table is used instead.

    [bold]Examples[/bold]

    [cyan]osa inspect exported/digits[/cyan]

    [cyan]osa inspect model.onnx --graph model.svg[/cyan]

    [cyan]osa inspect exported/digits --json | jq .graph.operators[/cyan]
    """
    from osa_runtime.cli.inspection_tables import show
    from osa_runtime.inspection import inspect_artifact
    from osa_runtime.inspection.drawing import draw_artifact
    from osa_runtime.plotting import check_figure_path

    if graph is not None:
        check_figure_path(graph, "graph")
    inspection = inspect_artifact(artifact, provider or ("cpu", "cuda"))
    if graph is not None:
        draw_artifact(artifact, graph)
    if as_json:
        typer.echo(json.dumps(inspection.as_dict(), indent=2, ensure_ascii=False))
    else:
        show(inspection)
        if graph is not None:
            typer.echo(f"\nThe graph is drawn in {graph}")
