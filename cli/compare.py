"""``osa compare``: the distance between two exported models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osa_runtime.cli import options

_inputs, _judgement, _files = map(options.panel, (options.INPUTS, options.JUDGEMENT, options.FILES))


def compare(
    artifact: Annotated[Path, typer.Argument(help="The artifact to judge.", show_default=False)],
    reference: Annotated[
        Path | None, typer.Argument(help="The artifact to compare it with; with --runtime, itself.", show_default=False)
    ] = None,
    batches: Annotated[str | None, _inputs("--batch", help="Batch sizes, such as 1,8.", show_default="1,2,5")] = None,
    lengths: Annotated[
        str | None, _inputs("--tokens", help="Sequence lengths, for sequence models.", show_default="some")
    ] = None,
    seed: options.Seed = 0,
    quick: options.Quick = False,
    rtol: Annotated[
        float | None,
        _judgement(
            min=0.0,
            help="Allowed |difference| relative to the largest value; recorded.",
            show_default="the wider of the two artifacts'",
        ),
    ] = None,
    atol: options.Atol = None,
    bisect: Annotated[bool, _judgement("--bisect", help="When they differ: find the first part that differs.")] = False,
    report: Annotated[Path | None, _files(help="Write the results to this .json.")] = None,
    html: options.Html = None,
    save_inputs: options.SaveInputs = None,
    load_inputs: Annotated[Path | None, _files(help="Use the inputs in this .npz.")] = None,
    save_outputs: Annotated[Path | None, _files(help="Write the first artifact's outputs to this .npz.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results instead of tables.")] = False,
    device: options.Device = "cpu",
    allow_fallback: options.AllowFallback = False,
    threads: options.ThreadsBySize = None,
    runtime: options.Runtime = None,
) -> None:
    """Compare two exported models on the same inputs: fp16 with fp32, inlined with functions, TorchScript with ONNX.

    [bold]Examples[/bold]

    [cyan]osa compare digits-fp16 digits-onnx[/cyan]

    [cyan]osa compare digits-torchscript digits-onnx --html difference.html[/cyan]

    [cyan]osa compare digits-openvino --runtime openvino[/cyan]     there against ONNX Runtime
    """
    from osa_runtime.cli.verify_report import Files, VerifyReport, read_settings
    from osa_runtime.environment import require
    from osa_runtime.errors import InputError
    from osa_runtime.runtime.device import DeviceSettings

    if reference is None and runtime is None:
        raise InputError("Give a second artifact, or --runtime to compare one with itself elsewhere.")
    require("Verifying", "torch", "onnx", "safetensors", extra="export")
    files = Files(report, html, save_inputs, save_outputs)
    files.check()
    where, folder = DeviceSettings(device, threads, allow_fallback, runtime), Path("-") if bisect else None
    judged = {"where": where, "seed": seed, "rtol": rtol, "atol": atol, "bisect": folder, "quick": quick}
    settings = read_settings(artifact, batches, lengths, load_inputs, None, **judged)
    from osa_runtime.verification import compare as run_compare

    shown = VerifyReport(as_json)
    with shown.working() as progress:
        run = run_compare(artifact, reference or artifact, settings, progress)
    files.write(run)
    shown.result(run.certificate, files)
    if run.certificate.failed:
        raise typer.Exit(1)
