"""``osa run``: run an exported model on arrays or pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osa_runtime.cli.options import INPUTS, WHERE, AllowFallback, Device, check_file, panel

_inputs, _output, _where = map(panel, (INPUTS, "Output", WHERE))


def run(
    artifact: Annotated[
        Path, typer.Argument(help="An exported folder, or a model file (.onnx, .pt, .pt2).", show_default=False)
    ],
    inputs: Annotated[
        list[str],
        _inputs(
            "--input",
            "-i",
            help="NAME=FILE.npy, an .npz with an array per input, or a picture for an image model. The name may be "
            "left out when the model has one input. Several pictures make a batch.",
            show_default=False,
        ),
    ] = (),  # type: ignore[assignment]  # required, but a wrong artifact is the first thing to say
    mean: Annotated[
        str | None,
        _inputs(
            help="For pictures: subtracted from pixels scaled to 0…1, one number or one per channel, as in "
            "0.485,0.456,0.406; with --std."
        ),
    ] = None,
    std: Annotated[
        str | None,
        _inputs(help="For pictures: divides after --mean was subtracted; one number or one per channel, too."),
    ] = None,
    out: Annotated[Path | None, _output(help="Write all outputs to this .npz.")] = None,
    top: Annotated[
        int | None,
        _output(
            min=1,
            help="Classes to show per row, with softmax probabilities; given, for every output of floats.",
            show_default="5, for outputs called logits",
        ),
    ] = None,
    as_json: Annotated[bool, _output("--json", help="Print one JSON object instead of text.")] = False,
    allow_nonfinite: Annotated[bool, _output("--allow-nonfinite", help="Show NaN and Inf instead of failing.")] = False,
    device: Device = "cpu",
    allow_fallback: AllowFallback = False,
    threads: Annotated[int | None, _where(min=1, help="Threads.", show_default="chosen by the runtime")] = None,
    check_hash: Annotated[bool, _where("--check-hash/--no-check-hash", help="Refuse changed files.")] = True,
) -> None:
    """Run an exported model on arrays or pictures, and show its outputs.

    A picture is converted to grey or RGB, resized, and standardised as in training, which the artifact of
    a model from `osa train` records. Otherwise use --mean and --std, for pixels of 0…1; without them the picture's
    own are used, and a note says so. Colours are not inverted.

    If a sequence model's mask is left out, every token counts as real.

    [bold]Examples[/bold]

    [cyan]osa run digits-onnx --input images=x.npy --out y.npz[/cyan]

    [cyan]osa run digits-onnx --input seven.png --top 3[/cyan]

    [cyan]osa run encoder-onnx --input batch.npz --device cuda --json[/cyan]
    """
    import time
    import warnings

    from osa_runtime.arrays import write_npz
    from osa_runtime.cli.run_arrays import PixelSettings, RunReport, read_inputs
    from osa_runtime.runtime.session import load

    check_file("--out", out, ".npz")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the report shows the note on a fallback
        session = load(artifact, device, threads=threads, allow_fallback=allow_fallback, check_hash=check_hash)
    with session:
        feeds, notes = read_inputs(inputs, session.interface, PixelSettings(mean, std, session.manifest))
        notes += session.calibrated.beyond(feeds)
        start = time.perf_counter()
        outputs = session.run(feeds, check_finite=not allow_nonfinite)
        seconds = time.perf_counter() - start
    if out is not None:
        write_npz(out, outputs)
    report = RunReport(session, outputs, seconds, notes, top)
    report.show(as_json, out)
