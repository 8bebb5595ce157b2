"""``osa analyze``: look inside a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def analyze(
    model: Annotated[Path, typer.Argument(help="A checkpoint, a training run or an artifact.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for analysis.html, analysis.json and the figures.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Samples: digits, mnist, fashion-mnist or an .npz file, as in `osa evaluate`.",
            show_default="random inputs",
        ),
    ] = None,
    rows: Annotated[int, typer.Option("--samples", help="Number of samples.")] = 8,
    data_folder: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", help="Folder of fetched data sets.", show_default="$OSA_DATA or ~/.cache/osa-runtime"
        ),
    ] = None,
) -> None:
    """Look inside a model: what each layer and head does to its tokens.

    Norms of the exponents, α, orthogonality, rank and cosine of the tokens through depth, extreme singular values of
    each layer's Jacobian, and attention matrices over the pictures they belong to.

    [bold]Examples[/bold]

    [cyan]osa analyze runs/digits --data digits --out inside[/cyan]
    """
    from osa_runtime.atomic import check_writable
    from osa_runtime.environment import require
    from osa_runtime.plotting import require_matplotlib

    require("Analyzing", "torch", "safetensors", extra="export")
    require_matplotlib()
    check_writable(out / "analysis.html")

    from osa_runtime.analysis.analysing import analyze as look_inside
    from osa_runtime.analysis.page import write_analysis

    found = look_inside(model, data, rows=rows, data_folder=data_folder)
    for index, layer in enumerate(found.layers, start=1):
        norms = "" if layer.norms is None else f"  ‖S‖ up to {max(layer.norms):.3g}"
        condition = "" if layer.condition is None else f"  condition {layer.condition:.3g}"
        typer.echo(
            f"layer {index}{norms}  ‖AᵀA − I‖ {max(layer.defects):.2g}  rank {layer.effective_rank:.3g}{condition}"
        )
    for reason, layers in found.without_jacobian().items():
        typer.echo(f"No Jacobian of {', '.join(layers)}: {reason}.")
    typer.echo(f"Wrote {', '.join(str(path) for path in write_analysis(found, out))}")
