"""``osa export``: a checkpoint, or the user's own module, as a deployable folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

WHAT, GRAPH, FILES = "What", "Graph", "Files"


def export(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the artifact.", rich_help_panel=FILES)],
    checkpoint: Annotated[
        Path | None, typer.Argument(help="A checkpoint, or the folder of a training run.", show_default=False)
    ] = None,
    factory: Annotated[
        str | None,
        typer.Option(
            help="For a model of your own: package.module:function that returns "
            "(module, example inputs, {input: {axis: name}}).",
            rich_help_panel=WHAT,
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="With --factory: its weights, .safetensors or .pt.", rich_help_panel=WHAT),
    ] = None,
    format: Annotated[
        Literal["onnx", "torchscript", "pt2"], typer.Option(help="Format of the model file.", rich_help_panel=WHAT)
    ] = "onnx",
    dtype: Annotated[
        str, typer.Option(help="fp32 or fp16; the OSA core stays in fp32.", rich_help_panel=WHAT)
    ] = "fp32",
    static: Annotated[
        bool, typer.Option("--static", help="Fix every axis at the size of the example.", rich_help_panel=WHAT)
    ] = False,
    pixels: Annotated[
        Literal["float32", "uint8"],
        typer.Option(
            help="Type of the images that clients send: standardised, or raw bytes (a quarter of the size), which the "
            "model standardises in its first layer.",
            rich_help_panel=WHAT,
        ),
    ] = "float32",
    opset: Annotated[int, typer.Option(help="ONNX operator set, 18 to 23.", rich_help_panel=GRAPH)] = 18,
    functions: Annotated[
        Literal["keep", "inline"],
        typer.Option(help="Keep one ai.osa node per attention layer, or expand it.", rich_help_panel=GRAPH),
    ] = "keep",
    squarings: Annotated[
        str | None,
        typer.Option(
            help="auto (as many as the data needs, a Loop) or a fixed number, without control flow.",
            show_default="as trained",
            rich_help_panel=GRAPH,
        ),
    ] = None,
    approximant: Annotated[
        Literal["taylor", "pade"] | None,
        typer.Option(help="Approximant of the exponential.", show_default="as trained", rich_help_panel=GRAPH),
    ] = None,
    form: Annotated[
        Literal["auto", "dense", "lowrank"] | None,
        typer.Option(
            help="Through S itself, through [Q K], or by size.", show_default="as trained", rich_help_panel=GRAPH
        ),
    ] = None,
    external_data: Annotated[
        bool, typer.Option("--external-data", help="Write the weights to model.onnx.data.", rich_help_panel=FILES)
    ] = False,
    replace: Annotated[
        bool, typer.Option("--force", help="Replace an earlier artifact.", rich_help_panel=FILES)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be written, and write nothing.", rich_help_panel=FILES)
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the time of each step.")] = False,
) -> None:
    """Export a trained model to ONNX, TorchScript or torch.export, and check it against eager.

    [bold]Examples[/bold]

    [cyan]osa export runs/digits --out digits-onnx[/cyan]

    [cyan]osa export runs/digits --out digits-flat --functions inline --squarings 4[/cyan]

    [cyan]osa export runs/digits --out digits-bytes --pixels uint8[/cyan]     clients send raw pixels

    [cyan]osa export --factory my_models:build --weights w.safetensors --out mine[/cyan]
    """
    from osa_runtime.cli.export_report import ExportReport
    from osa_runtime.environment import require
    from osa_runtime.errors import InputError

    if (checkpoint is None) == (factory is None):
        raise InputError("Give either a CHECKPOINT folder or --factory package.module:function.")
    if weights is not None and factory is None:
        raise InputError("--weights goes with --factory; a checkpoint has its own.")
    if pixels != "float32" and factory is not None:
        raise InputError("--pixels is for checkpoints; let your own module take uint8 and standardise it in forward().")
    options: dict[str, Any] = {
        "format": format,
        "dtype": dtype,
        "opset": opset,
        "functions": functions,
        "squarings": _squarings(squarings),
        "approximant": approximant,
        "form": form,
        "external_data": external_data,
    }
    require("Exporting", "torch", "onnx", "onnxscript", "safetensors", extra="export")
    report = ExportReport(verbose)
    report.check(options, out, replace)
    _check_source(checkpoint, factory, weights, out, pixels)
    if dry_run:
        report.plan(checkpoint or factory, out, options | {"pixels": pixels}, static)
        return
    options |= {"static": static, "replace": replace, "progress": report.step}
    if checkpoint is not None:
        from osa_runtime.exporters import export_checkpoint

        artifact = export_checkpoint(checkpoint, out, pixels=pixels, **options)
    else:
        from osa_runtime.exporters.factory import export_factory

        artifact = export_factory(str(factory), weights, out, **options)
    report.result(artifact)


def _check_source(checkpoint: Path | None, factory: str | None, weights: Path | None, out: Path, pixels: str) -> None:
    """Check the source before the first step is announced, and for --dry-run."""
    if checkpoint is not None:
        from osa_runtime.exporters.checkpoint_export import check_checkpoint

        check_checkpoint(checkpoint, out, pixels)
    else:
        from osa_runtime.exporters.factory import check_factory

        check_factory(str(factory), weights, out)


def _squarings(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.isdecimal() else text
