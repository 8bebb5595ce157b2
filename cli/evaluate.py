"""``osa evaluate``: the accuracy of an exported model, optionally compared with another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osa_runtime.cli.options import WHERE, AllowFallback, Device

WHAT, JUDGE, FILES = "Inputs", "Judgement", "Files"


def evaluate(
    artifact: Annotated[
        Path,
        typer.Argument(help="An exported folder, a model file (.onnx, .pt, .pt2) or a checkpoint.", show_default=False),
    ],
    data: Annotated[
        str,
        typer.Option(
            help="digits, mnist or fashion-mnist (their test images), or an .npz file: x with images as they were "
            "stored and y with labels, or x_test and y_test.",
            show_default=False,
            rich_help_panel=WHAT,
        ),
    ],
    against: Annotated[
        Path | None,
        typer.Option(help="Another artifact, model file or checkpoint, on the same data.", rich_help_panel=WHAT),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Use this many samples, evenly spaced.", show_default="all", rich_help_panel=WHAT),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of fetched data sets.", show_default="$OSA_DATA or ~/.cache/osa-runtime", rich_help_panel=WHAT
        ),
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="With --against: exit with 1 when the accuracy is lower by more percentage points than this.",
            show_default="no limit",
            rich_help_panel=JUDGE,
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per run.", rich_help_panel=WHERE)] = 64,
    out: Annotated[Path | None, typer.Option(help="Write the figures to this .json.", rich_help_panel=FILES)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    device: Device = "cpu",
    allow_fallback: AllowFallback = False,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads.", show_default="by the runtime", rich_help_panel=WHERE)
    ] = None,
) -> None:
    """Measure the accuracy of an exported model or a checkpoint on labelled data.

    Images are prepared as in training. The interval is Wilson's for 95 %. With --against the samples on which the
    two differ are counted, and McNemar's exact test shows whether chance explains them. Exits with 1 for NaN and Inf
    among the outputs, and when the drop exceeds --max-drop.

    [bold]Examples[/bold]

    [cyan]osa evaluate digits-onnx --data digits[/cyan]

    [cyan]osa evaluate digits-int8 --data digits --against digits-onnx --max-drop 0.5[/cyan]

    [cyan]osa evaluate digits-onnx --data mine.npz --against runs/digits --out figures.json[/cyan]
    """
    import math

    from osa_runtime.cli.evaluate_report import EvaluationProgress, check_out, figures, show, write
    from osa_runtime.errors import InputError

    if max_drop is not None and (against is None or not math.isfinite(max_drop)):
        raise InputError(
            f"--max-drop is {max_drop:g}, expected a finite number together with --against, the model to compare with."
        )
    check_out(out)
    from osa_runtime.evaluation import evaluate as run_evaluate

    with EvaluationProgress() as progress:
        result = run_evaluate(
            artifact,
            data,
            against,
            batch_size=batch_size,
            limit=limit,
            device=device,
            threads=threads,
            allow_fallback=allow_fallback,
            data_folder=data_dir,
            progress=progress,
        )
    content = figures(result, max_drop)
    write(content, out)
    show(result, content, as_json)
    if content["failure"] is not None:
        raise typer.Exit(1)
