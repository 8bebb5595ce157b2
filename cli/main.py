"""The ``osa`` program: its commands, and the boundary at which errors become messages and exit codes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated

import typer

from osa_runtime import __version__
from osa_runtime.cli.bench import bench
from osa_runtime.cli.boundary import BoundaryGroup, guarded
from osa_runtime.cli.compare import compare
from osa_runtime.cli.data import app as data
from osa_runtime.cli.doctor import doctor
from osa_runtime.cli.evaluate import evaluate
from osa_runtime.cli.export import export
from osa_runtime.cli.inspect import inspect as inspect_model
from osa_runtime.cli.options import FlaggedCommand
from osa_runtime.cli.package import app as package
from osa_runtime.cli.quantize import quantize
from osa_runtime.cli.run import run as run_model
from osa_runtime.cli.serve import serve
from osa_runtime.cli.train import train
from osa_runtime.cli.verify import verify

EPILOG = "Exit codes: 0 success · 1 a check failed · 2 wrong usage · 3 export or environment error"

app = typer.Typer(
    name="osa",
    cls=BoundaryGroup,
    epilog=EPILOG,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(command: Callable[..., None], name: str | None = None) -> None:
    """Add a command. A paragraph of its docstring is wrapped for the source; here it becomes a single line."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    app.command(
        name, cls=FlaggedCommand, help="\n\n".join(" ".join(paragraph.splitlines()) for paragraph in paragraphs)
    )(command)


_add(train)
app.add_typer(data, name="data")
_add(export)
_add(quantize)
_add(inspect_model)
_add(verify)
_add(compare)
_add(evaluate)
_add(run_model)
_add(bench)
_add(serve)
app.add_typer(package, name="package")
_add(doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"osa-runtime {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def osa(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - acts through its callback
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Orthogonal Self-Attention: train skipless transformers and deploy them.

    [bold]Start here[/bold]

    [cyan]osa doctor[/cyan]                                    what this machine can run

    [cyan]osa train digits --out runs/digits[/cyan]            a first model, on the CPU

    [cyan]osa export runs/digits --out digits-onnx[/cyan]      a folder to deploy

    [cyan]osa inspect digits-onnx[/cyan]                       show what is in it

    [cyan]osa verify digits-onnx --against runs/digits[/cyan]  check it

    [cyan]osa run digits-onnx --input seven.png[/cyan]         run it on a picture

    [cyan]osa serve digits-onnx[/cyan]                         serve it over REST and gRPC

    Every command has a description and examples: [cyan]osa COMMAND --help[/cyan]
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run() -> None:
    """The entry point of the installed ``osa`` script."""
    guarded(app)
