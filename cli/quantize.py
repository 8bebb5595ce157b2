"""``osa quantize``: an exported model with 8-bit weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from osa_runtime.cli.options import FILES, panel

if TYPE_CHECKING:
    from osa_runtime.manifest import Quantization
    from osa_runtime.quantization import Quantized

_what, _files = map(panel, ("What", FILES))


def quantize(
    artifact: Annotated[Path, typer.Argument(help="An exported ONNX folder, in fp32.", show_default=False)],
    out: Annotated[Path, _files("--out", "-o", help="Folder for the smaller artifact.")],
    weights: Annotated[
        Literal["int8"], _what(help="Type of the stored weights; each channel has its own scale.")
    ] = "int8",
    activations: Annotated[
        Literal["none", "dynamic", "static"],
        _what(
            help="none computes in float32. The others multiply in 8 bits, with ranges that are measured in every run "
            "(dynamic) or once, on --calibration (static)."
        ),
    ] = "none",
    calibration: Annotated[
        Path | None,
        _what(help="An .npz with an array of examples for each input; the deviation is measured on them, too."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        _what(
            help="A part that stays in float32, such as head or 'stack.blocks.*.mlp'; may be repeated.",
            show_default="none",
        ),
    ] = None,
    replace: Annotated[bool, _files("--force", help="Replace an earlier artifact.")] = False,
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
    from osa_runtime.cli.progress import StepLines
    from osa_runtime.environment import require

    require("Quantising", "onnx", extra="export")
    from osa_runtime.quantization import QuantizeSettings
    from osa_runtime.quantization import quantize as run
    from osa_runtime.quantization.quantizing import check_source

    settings = QuantizeSettings(weights, activations, tuple(keep or ()))
    check_source(artifact, out, settings, calibration, replace=replace)
    console = Console(highlight=False)
    found = run(
        artifact,
        out,
        weights=weights,
        activations=activations,
        calibration=calibration,
        keep=settings.keep,
        replace=replace,
        progress=None if as_json else StepLines(console, verbose=verbose),
    )
    if as_json:
        typer.echo(json.dumps(_as_dict(found), indent=2, ensure_ascii=False))
    else:
        _show(found, console)


CAUTIONS = {
    "dynamic": "rows that share a batch share their ranges: a row's answer depends on the other rows",
    "static": "inputs beyond the calibrated ranges are cut off silently",
}


def _show(found: Quantized, console: Console) -> None:
    console.print(_summary(found))
    if found.deviations:
        console.print(_deviations(found))
    for caution in _cautions(found):
        console.print(f"[yellow]note[/yellow]: {escape(caution)}", soft_wrap=True)
    folders = f"{found.artifact.folder} {found.source.folder}"
    console.print(f"See more with: osa compare {escape(folders)}", soft_wrap=True)


def _as_dict(found: Quantized) -> dict[str, Any]:
    before, after = found.sizes
    return {
        "artifact": str(found.artifact.folder),
        "dtype": found.artifact.manifest.dtype,
        "size": {"before": before, "after": after},
        "products": list(found.selection.products),
        "tables": list(found.selection.tables),
        "kept": list(found.selection.kept),
        "measured_on": found.measured_on,
        "deviation": {name: asdict(metrics) for name, metrics in found.deviations.items()},
        "notes": list(_cautions(found)),
    }


def _summary(found: Quantized) -> Table:
    manifest, (before, after) = found.artifact.manifest, found.sizes
    described = manifest.quantization
    assert described is not None
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    rows = {
        "artifact": str(found.artifact.folder),
        "precision": f"{manifest.dtype}: weights of {described.weight_bits} bits in int8, "
        f"activations {described.activations}; orthogonal attention in float32",
        "size": f"{before / 2**20:.2f} MiB → {after / 2**20:.2f} MiB ({before / after:.1f} times smaller)",
        "quantised": f"{described.quantized} weights",
        "kept": ", ".join(found.selection.kept),
        "measured on": found.measured_on,
        "ranges": _ranges(described),
    }
    for name, value in rows.items():
        if value:
            table.add_row(f"[bold]{name}[/bold]", escape(value))
    return table


def _ranges(described: Quantization) -> str:
    ranges = {} if described.calibration is None else described.calibration.ranges
    return ", ".join(f"{name} from {low:.3g} to {high:.3g}" for name, (low, high) in ranges.items())


def _deviations(found: Quantized) -> Table:
    table = Table(title="deviation from the source", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("output", "largest", "rms", "same top class"):
        table.add_column(column, justify="left" if column == "output" else "right")
    for name, metrics in found.deviations.items():
        same = "" if metrics.top1 is None else f"{metrics.top1:.2%}"
        table.add_row(escape(name), f"{metrics.max_rel:.2%}", f"{metrics.rms:.2%}", same)
    return table


def _cautions(found: Quantized) -> Iterator[str]:
    from osa_runtime.parity.tolerances import relative_tolerance

    manifest = found.artifact.manifest
    described = manifest.quantization
    assert described is not None
    if described.activations in CAUTIONS:
        yield CAUTIONS[described.activations]
    limit = relative_tolerance("onnx", manifest.dtype, manifest.depth or 1)
    for name, metrics in found.deviations.items():
        if metrics.max_rel > limit:
            yield (
                f"{name} moved by {metrics.max_rel:.2g} of its largest value, more than the {limit:.2g} that rounding "
                "explains: measure the accuracy, and keep parts in float32 with --keep"
            )
    if not found.deviations:
        yield "the source returns NaN on random inputs, so that nothing could be compared; use --calibration"
    elif described.calibration is None:
        yield "random inputs are not your data: measure with --calibration, and measure the accuracy"
