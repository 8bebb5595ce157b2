"""Errors at the top of the program: one clear message and an exit code, a traceback only for our own bugs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import typer
from typer.core import TyperGroup

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
            return super().invoke(ctx)


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
    signal.signal(signal.SIGTERM, _terminate)
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


def _terminate(number: int, frame: object) -> None:  # noqa: ARG001  # a signal handler's signature
    """Exit through the finally clauses, so that no half-written file remains."""
    sys.exit(TERMINATED)


def _complain(message: str) -> None:
    typer.secho("error: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
    typer.echo(message, err=True)


def _discard_output() -> None:
    """Redirect stdout to the null device, so that the flush at interpreter exit succeeds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
