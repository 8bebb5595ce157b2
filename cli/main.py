"""The ``osa`` program: its commands, and the boundary at which errors become messages and exit codes."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from osa_runtime import __version__
from osa_runtime.atomic import check_not_stopping, stopping
from osa_runtime.cli.analyze import analyze
from osa_runtime.cli.bench import bench
from osa_runtime.cli.compare import compare
from osa_runtime.cli.doctor import doctor
from osa_runtime.cli.evaluate import evaluate
from osa_runtime.cli.export import export
from osa_runtime.cli.inspect import inspect as inspect_model
from osa_runtime.cli.options import FlaggedCommand
from osa_runtime.cli.package import app as package
from osa_runtime.cli.quantize import quantize
from osa_runtime.cli.reproduce import reproduce
from osa_runtime.cli.run import run as run_model
from osa_runtime.cli.serve import serve
from osa_runtime.cli.train import data, train
from osa_runtime.cli.verify import verify
from osa_runtime.errors import OsaError

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
READER_GONE = 141  # 128 + SIGPIPE
TERMINATED = 143  # 128 + SIGTERM
INTERNAL_ERROR = 70  # EX_SOFTWARE, so that a bug is never mistaken for a failed check


class BoundaryGroup(TyperGroup):
    """The top command group. It handles errors before typer, which would turn a closed pipe into exit code 1."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _errors_become_messages():  # --help and --version print while the arguments are parsed
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _errors_become_messages():
            result = super().invoke(ctx)
            check_not_stopping()
            return result


@contextlib.contextmanager
def _errors_become_messages() -> Iterator[None]:
    try:
        yield
    except OsaError as error:
        _complain(str(error))
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        # CPython kills itself with SIGINT at exit when an interrupt has passed through exec() of a string, which
        # torch's tracing uses, even if it was caught further out; the next exec() resets that.
        exec("")
        _complain("Interrupted.")
        raise typer.Exit(INTERRUPTED) from error
    except BrokenPipeError as error:
        _discard_output()
        raise typer.Exit(READER_GONE) from error


def guarded(program: Callable[[], Any]) -> None:
    """Run ``program`` and exit; an unexpected error prints its traceback and a request to report it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # jobs in the background may ignore the interrupt
            signal.signal(number, _stop)
    try:
        try:
            program()
        finally:
            sys.stdout.flush()  # here rather than at interpreter exit, where a closed pipe cannot be caught
    except BrokenPipeError:
        _discard_output()
        sys.exit(READER_GONE)
    except Exception:  # noqa: BLE001 - the last place where anything can be caught
        traceback.print_exc()
        _complain("This is a bug in osa-runtime. Please report it with the traceback above and `osa doctor --json`.")
        sys.exit(INTERNAL_ERROR)


def _stop(number: int, frame: object) -> None:  # noqa: ARG001  # a signal handler's signature
    """End through the finally clauses, so that no half-written file remains.

    Python drops an exception that reaches a finaliser or a callback, so the request is also remembered.
    """
    stopping.append(KeyboardInterrupt() if number == signal.SIGINT else SystemExit(TERMINATED))
    check_not_stopping()


def _complain(message: str) -> None:
    typer.secho("error: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
    typer.echo(message, err=True)


def _discard_output() -> None:
    """Redirect stdout to the null device, so that the flush at interpreter exit succeeds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
_add(analyze)
_add(reproduce)
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
