"""``osa quantize``: an exported model with 8-bit weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

WHAT, FILES = "What", "Files"


def quantize(
    artifact: Annotated[Path, typer.Argument(help="An exported ONNX folder, in fp32.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the smaller artifact.", rich_help_panel=FILES)],
    weights: Annotated[
        Literal["int8"],
        typer.Option(help="Type of the stored weights; each channel has its own scale.", rich_help_panel=WHAT),
    ] = "int8",
    activations: Annotated[
        Literal["none", "dynamic", "static"],
        typer.Option(
            help="none computes in float32. The others multiply in 8 bits, with ranges that are measured in every run "
            "(dynamic) or once, on --calibration (static).",
            rich_help_panel=WHAT,
        ),
    ] = "none",
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="An .npz with an array of examples for each input; the deviation is measured on them, too.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="A part that stays in float32, such as head or 'stack.blocks.*.mlp'; may be repeated.",
            show_default="none",
            rich_help_panel=WHAT,
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--force", help="Replace an earlier artifact.", rich_help_panel=FILES)
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the time of each step.")] = False,
) -> None:
    """Store the weights of an exported model in 8 bits, and measure how far its answers move.

    Orthogonal attention stays in float32. The result is an ordinary artifact; measure its accuracy on your own
    data before you use it.

    [bold]Examples[/bold]

    [cyan]osa quantize digits-onnx --out digits-int8[/cyan]

    [cyan]osa quantize digits-onnx --out digits-static --activations static --calibration examples.npz[/cyan]

    [cyan]osa compare digits-int8 digits-onnx[/cyan]        the distance between the two
    """
    from osa_runtime.cli.quantize_report import QuantizeReport
    from osa_runtime.environment import require

    require("Quantising", "onnx", extra="export")
    from osa_runtime.quantization import QuantizeSettings
    from osa_runtime.quantization import quantize as run
    from osa_runtime.quantization.quantizing import check_source

    settings = QuantizeSettings(weights, activations, tuple(keep or ()))
    check_source(artifact, out, settings, calibration, replace=replace)
    report = QuantizeReport(as_json, verbose)
    result = run(
        artifact,
        out,
        weights=weights,
        activations=activations,
        calibration=calibration,
        keep=settings.keep,
        replace=replace,
        progress=report.step,
    )
    report.result(result)
