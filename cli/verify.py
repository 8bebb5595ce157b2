"""``osa verify``: check that an exported model is the trained one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osa_runtime.cli import options

_inputs, _judgement, _files = map(options.panel, (options.INPUTS, options.JUDGEMENT, options.FILES))


def verify(
    artifact: Annotated[
        Path, typer.Argument(help="An exported folder, or a model file (.onnx, .pt, .pt2).", show_default=False)
    ],
    against: Annotated[
        Path | None,
        _inputs("--against", help="The checkpoint, or the folder of a training run, that it was exported from."),
    ] = None,
    factory: Annotated[
        str | None,
        _inputs(help="Instead of --against, for a model of your own: package.module:function, as for `osa export`."),
    ] = None,
    weights: Annotated[Path | None, _inputs(help="With --factory: its weights, .safetensors or .pt.")] = None,
    batches: Annotated[str | None, _inputs("--batch", help="Batch sizes, such as 1,8.", show_default="1 to 64")] = None,
    lengths: Annotated[
        str | None,
        _inputs("--tokens", help="Sequence lengths, for sequence models.", show_default="a grid from 1 to the longest"),
    ] = None,
    evaluate: Annotated[
        str | None,
        _inputs(
            help="Also measure the accuracy on this data, as `osa evaluate` does, and record it in the certificate."
        ),
    ] = None,
    data: Annotated[
        str | None, _inputs(help="Real images in addition to the others: digits, mnist, fashion-mnist, or an .npz.")
    ] = None,
    calibration: Annotated[
        Path | None,
        _inputs(
            help="The .npz with the examples of a static quantisation: its ranges are measured again.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    quick: options.Quick = False,
    seed: options.Seed = 0,
    rtol: Annotated[
        float | None,
        _judgement(
            min=0.0,
            help="Allowed |difference| relative to the largest value; recorded.",
            show_default="by format, type, depth and ‖S‖",
        ),
    ] = None,
    atol: options.Atol = None,
    bisect: Annotated[
        Path | None,
        _judgement(
            "--bisect",
            help="On failure: find the first part that is wrong, and write files that reproduce it to this folder.",
        ),
    ] = None,
    report: Annotated[Path | None, _files(help="Write the certificate to this .json.")] = None,
    certify: Annotated[bool, _files("--certify", help="Write the certificate into the artifact's folder.")] = False,
    sign: Annotated[
        Path | None, _files(help="With --certify: sign a PASS with this private Ed25519 key (PEM).")
    ] = None,
    html: options.Html = None,
    save_inputs: options.SaveInputs = None,
    load_inputs: Annotated[
        Path | None, _files(help="Use the inputs in this .npz: saved ones, or one array per input of the model.")
    ] = None,
    save_outputs: Annotated[Path | None, _files(help="Write the artifact's outputs to this .npz.")] = None,
    load_outputs: Annotated[Path | None, _files(help="Compare with the outputs in this .npz, saved elsewhere.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificate instead of tables.")] = False,
    device: options.Device = "cpu",
    allow_fallback: options.AllowFallback = False,
    threads: options.ThreadsBySize = None,
    runtime: options.Runtime = None,
) -> None:
    """Check that an exported model returns what the trained one returns, and that its attention is orthogonal.

    The artifact, eager PyTorch in the same precision and eager in float64 answer the same inputs: batch sizes and
    lengths on a grid; random, constant, padded in all ways, every id, magnitudes up to and beyond the range, pixels,
    NaN, and with queries and keys that almost cancel. Then each part of the
    model is fed alone, and in every attention layer and head ‖AᵀA − I‖, ‖Av‖/‖v‖ and the distance from exp(S)·V are
    measured. Without --against only the last check runs: it does not need a reference.

    Exits with 0 when everything agrees and with 1 when anything does not.

    [bold]Examples[/bold]

    [cyan]osa verify digits-onnx --against runs/digits --html report.html[/cyan]

    [cyan]osa verify digits-onnx --against runs/digits --bisect fault[/cyan]

    [cyan]osa verify digits-onnx --save-inputs in.npz --save-outputs out.npz[/cyan]

    [cyan]osa verify digits-onnx --device cuda --load-inputs in.npz --load-outputs out.npz[/cyan]
    """
    from osa_runtime.atomic import check_writable
    from osa_runtime.cli.verify_report import Files, Signer, VerifyReport, check_data, evaluated, read_settings
    from osa_runtime.environment import require
    from osa_runtime.runtime.device import DeviceSettings

    require("Verifying", "torch", "onnx", "safetensors", extra="export")
    files = Files(report, html, save_inputs, save_outputs, artifact if certify else None)
    files.check()
    if bisect is not None:
        check_writable(bisect / "reproduce.py")
    where = DeviceSettings(device, threads, allow_fallback, runtime)
    judged = {"where": where, "seed": seed, "rtol": rtol, "atol": atol, "bisect": bisect, "quick": quick}
    real = {"data": data, "calibration": calibration}
    settings = read_settings(artifact, batches, lengths, load_inputs, load_outputs, **judged, **real)
    signer = Signer.of_key(sign, settings, certify=certify, known=against is not None or factory is not None)
    check_data(evaluate)
    from osa_runtime.verification import verify as run_verify

    shown = VerifyReport(as_json)
    with shown.working() as progress:
        run = run_verify(artifact, against, settings, progress, factory=factory, weights=weights)
        run = evaluated(run, artifact, evaluate, against, progress)
    run = signer.signed(run)
    files.write(run)
    shown.result(run.certificate, files)
    if run.certificate.failed:
        raise typer.Exit(1)
