"""``osa evaluate``: the accuracy of an exported model, optionally compared with another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from osa_runtime.cli.options import FILES, INPUTS, JUDGEMENT, WHERE, AllowFallback, Device, panel

if TYPE_CHECKING:
    from osa_runtime.parity.evaluation import Accuracy, Evaluation


_inputs, _judgement, _files, _where = map(panel, (INPUTS, JUDGEMENT, FILES, WHERE))


def evaluate(
    artifact: Annotated[
        Path,
        typer.Argument(help="An exported folder, a model file (.onnx, .pt, .pt2) or a checkpoint.", show_default=False),
    ],
    data: Annotated[
        str,
        _inputs(
            help="digits, mnist or fashion-mnist (their test images), or an .npz file as `osa train` takes it: x with "
            "images or sequences and y with labels, or x_test and y_test.",
            show_default=False,
        ),
    ],
    against: Annotated[
        Path | None,
        _inputs(help="Another artifact, model file or checkpoint, on the same data."),
    ] = None,
    limit: Annotated[
        int | None,
        _inputs(min=1, help="Use this many samples, evenly spaced.", show_default="all"),
    ] = None,
    data_dir: Annotated[
        Path | None,
        _inputs(help="Folder of fetched data sets.", show_default="$OSA_DATA or ~/.cache/osa-runtime"),
    ] = None,
    max_drop: Annotated[
        float | None,
        _judgement(
            min=0.0,
            help="With --against: exit with 1 when the accuracy is lower by more percentage points than this.",
            show_default="no limit",
        ),
    ] = None,
    batch_size: Annotated[int, _where(min=1, help="Samples per run.")] = 64,
    out: Annotated[Path | None, _files(help="Write the figures to this .json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    device: Device = "cpu",
    allow_fallback: AllowFallback = False,
    threads: Annotated[int | None, _where(min=1, help="Threads.", show_default="by the runtime")] = None,
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

    from osa_runtime.errors import InputError

    if max_drop is not None and (against is None or not math.isfinite(max_drop)):
        raise InputError(
            f"--max-drop is {max_drop:g}, expected a finite number together with --against, the model to compare with."
        )
    check_out(out)
    from osa_runtime.cli.progress import StepProgress
    from osa_runtime.evaluation import evaluate as run_evaluate

    with StepProgress() as progress:
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


def figures(result: Evaluation, max_drop: float | None = None) -> dict[str, Any]:
    """All figures as JSON; ``failure`` is the reason why they are not good enough, or null."""
    content: dict[str, Any] = {
        "data": result.data,
        "data_sha256": result.sha256,
        "samples": result.accuracy.samples,
        "model": _accuracy(result.accuracy),
        "against": None,
        "comparison": None,
        "max_drop": max_drop,
        "failure": result.failure,
        "notes": list(result.notes),
    }
    if result.against is not None:
        content["against"] = _accuracy(result.against)
        content["comparison"] = {
            "different": result.differ,
            "only_model_right": result.gained,
            "only_against_right": result.lost,
            "drop_points": result.drop,
            "mcnemar_p": result.p_value,
        }
        if max_drop is not None and result.beyond(max_drop) and result.failure is None:
            content["failure"] = f"the accuracy drops by {result.drop:.2f} points, more than {max_drop:g}"
    return content


def _accuracy(part: Accuracy) -> dict[str, Any]:
    classes = [
        {"label": label, "samples": n, "correct": correct, "accuracy": correct / n if n else None}
        for label, (n, correct) in enumerate(part.by_class)
    ]
    return {
        "name": part.model,
        "accuracy": part.value,
        "interval": list(part.interval),
        "correct": part.correct,
        "nonfinite": part.nonfinite,
        "classes": classes,
    }


def check_out(out: Path | None) -> None:
    """Check that ``out`` can be written before any work is done."""
    from osa_runtime.atomic import check_writable
    from osa_runtime.errors import InputError

    if out is None:
        return
    if out.suffix != ".json":
        raise InputError(f"--out is {out}, expected a name that ends in .json.")
    check_writable(out)


def write(content: dict[str, Any], out: Path | None) -> None:
    from osa_runtime.atomic import atomic_file

    if out is not None:
        with atomic_file(out) as temporary:
            temporary.write_bytes(_text(content))


def _text(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace")  # a name that is not UTF-8 is escaped in JSON


def show(result: Evaluation, content: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(_text(content).decode(), nl=False)
        return
    console = Console(highlight=False, markup=False)
    console.print(f"{result.accuracy.samples} samples of {result.data}", soft_wrap=True)
    for part in (result.accuracy, result.against):
        if part is not None:
            console.print(f"{part.model}: {part}", soft_wrap=True)
    console.print(_classes(result))
    if result.against is not None:
        console.print(comparison(result), soft_wrap=True)
    for note in result.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if content["failure"] is not None:
        console.print(f"FAIL: {content['failure']}", soft_wrap=True, style="bold red")


def comparison(result: Evaluation) -> str:
    from osa_runtime.parity.evaluation import CHANCE

    if not result.differ:
        return "the two return the same answer for every sample"
    said = "chance explains it" if result.p_value >= CHANCE else "not chance"
    return (
        f"different answers: {result.differ}; right only in the first: {result.gained}, only in the second: "
        f"{result.lost}; drop {result.drop:.2f} points, McNemar's p = {result.p_value:.2g}: {said}"
    )


def _classes(result: Evaluation) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    parts = [part for part in (result.accuracy, result.against) if part is not None]
    for name in ("class", "samples", *("right" if i == 0 else "right in the other" for i in range(len(parts)))):
        table.add_column(name, justify="right")
    for label, (samples, _) in enumerate(result.accuracy.by_class):
        shares = [f"{100 * part.by_class[label][1] / samples:.1f} %" if samples else "–" for part in parts]
        table.add_row(str(label), str(samples), *shares)
    return table
