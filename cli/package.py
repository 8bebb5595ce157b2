"""``osa package``: exported models as folders for other servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from osa_runtime.cli.options import FlaggedCommand
from osa_runtime.cli.package_ray import ray

app = typer.Typer(help="Pack exported models for other servers.", no_args_is_help=True, rich_markup_mode="rich")

WHAT, BATCHING, RUN = "Package", "Batching", "Device"


@app.callback()
def package() -> None:
    """Pack exported models for other servers."""


app.command(cls=FlaggedCommand)(ray)


@app.command(cls=FlaggedCommand)
def triton(
    artifacts: Annotated[
        list[Path], typer.Argument(help="Exported ONNX folders; each becomes a model with the folder's name.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the model repository.")],
    backend: Annotated[
        Literal["onnxruntime", "python"],
        typer.Option(help="Triton's own ONNX Runtime, or our session with its checks.", rich_help_panel=WHAT),
    ] = "onnxruntime",
    name: Annotated[
        str | None,
        typer.Option(help="For one artifact: the model's name.", show_default="its folder's", rich_help_panel=WHAT),
    ] = None,
    version: Annotated[
        int, typer.Option("--version-number", min=1, help="The model's version.", rich_help_panel=WHAT)
    ] = 1,
    warm_up: Annotated[
        bool,
        typer.Option(help="Run samples before the model is reported ready.", rich_help_panel=WHAT),
    ] = True,
    max_batch: Annotated[
        int, typer.Option(min=1, help="Largest number of rows per run.", rich_help_panel=BATCHING)
    ] = 32,
    max_delay_us: Annotated[
        int, typer.Option(min=0, help="Microseconds to wait for a larger batch.", rich_help_panel=BATCHING)
    ] = 0,
    preferred: Annotated[
        list[int] | None,
        typer.Option(
            "--preferred-batch",
            min=1,
            help="A batch size to wait for; may be repeated.",
            show_default="none",
            rich_help_panel=BATCHING,
        ),
    ] = None,
    instances: Annotated[
        int, typer.Option(min=1, help="Number of concurrent runs, per GPU on CUDA.", rich_help_panel=RUN)
    ] = 1,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads per instance.", show_default="chosen by the server", rich_help_panel=RUN),
    ] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Device of the server.", rich_help_panel=RUN)] = "cpu",
    replace: Annotated[bool, typer.Option("--force", help="Replace an earlier repository.")] = False,
) -> None:
    """Write a model repository for NVIDIA's Triton: configurations, batching, warm-up, models.

    With --backend python the repository contains its own copy of our runtime; Triton's Python then needs numpy and
    onnxruntime, and every request is checked. Requests share batches where the model's first axis is dynamic.

    [bold]Examples[/bold]

    [cyan]osa package triton digits-onnx --out models[/cyan]        then: tritonserver --model-repository=models

    [cyan]osa package triton digits-onnx --out models --backend python --instances 2[/cyan]
    """
    from osa_runtime.packaging.triton_config import TritonSettings
    from osa_runtime.packaging.triton_repository import package_triton

    settings = TritonSettings(
        backend=backend,
        version=version,
        max_batch=max_batch,
        preferred=tuple(preferred or ()),
        max_delay_us=max_delay_us,
        instances=instances,
        device=device,
        threads=threads,
        warm_up=warm_up,
    )
    for model in package_triton(artifacts, out, settings, name=name, replace=replace):
        batches = f"batches of up to {model.max_batch}" if model.max_batch else "one request at a time"
        typer.echo(f"{model.name} (version {version}): {backend} backend, {batches}")
    typer.echo(f"Serve it with: tritonserver --model-repository={out}")
