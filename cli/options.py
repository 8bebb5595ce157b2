"""Options that commands share, and errors that name flags where the library names arguments."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from osa_runtime.atomic import check_writable
from osa_runtime.errors import InputError, OsaError


def panel(title: str) -> Callable[..., Any]:
    """``typer.Option`` for the options of one panel of the help."""
    return functools.partial(typer.Option, rich_help_panel=title)


INPUTS, JUDGEMENT, FILES, WHERE, BATCHING = "Inputs", "Judgement", "Files", "Device", "Batching"
_inputs, _judgement, _files, _where, _batching = map(panel, (INPUTS, JUDGEMENT, FILES, WHERE, BATCHING))

Device = Annotated[str, _where(help="cpu, cuda, or cuda:1.")]
AllowFallback = Annotated[bool, _where("--allow-fallback", help="Use the CPU where --device cannot be used.")]
Runtime = Annotated[
    str | None,
    _where(
        help="Run an ONNX artifact elsewhere: openvino, tract, reference (onnx's evaluator) or ort-node.",
        show_default="that of the format",
    ),
]
ThreadsBySize = Annotated[int | None, _where(min=1, help="Threads.", show_default="by size")]

# of `osa verify` and `osa compare`
Quick = Annotated[bool, _inputs("--quick", help="Skip the grid of sizes and magnitudes.")]
Seed = Annotated[int, _inputs(min=0, help="Seed of the random inputs.")]
Atol = Annotated[float | None, _judgement(min=0.0, help="Allowed in addition to --rtol; recorded.", show_default="0")]
Html = Annotated[Path | None, _files(help="Write a page with plots to this .html.")]
SaveInputs = Annotated[Path | None, _files(help="Write the inputs of all cases to this .npz.")]

# of `osa serve` and `osa package`
MaxBatch = Annotated[int, _batching(min=1, help="Largest number of rows per run.")]
MaxDelay = Annotated[float, _batching(min=0, help="Milliseconds to wait for a larger batch.")]

# squarings=99, format='onxx', or the name alone in "epochs must be …" and at the beginning of "timeout is inf, …"
ARGUMENT = re.compile(r"\b([a-z][a-z_]*)(?:=('[^']*'|\"[^\"]*\"|[^\s,;:()'\"]*[^\s,;:().'\"])|(?= must )|(?= is ))")


class FlaggedCommand(TyperCommand):
    """A command whose options have the names of the arguments that they are passed on to."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OsaError as error:
            error.args = (in_flags(str(error), self.params),)
            raise


def in_flags(message: str, parameters: Sequence[Any]) -> str:
    """The message with ``--squarings 99`` in place of ``squarings=99``, for the options among the parameters."""
    options = {p.name: p for p in parameters if p.param_type_name == "option"}
    return ARGUMENT.sub(lambda found: _flag(found, options), message)


def _flag(found: re.Match[str], options: Mapping[str, Any]) -> str:
    option = options.get(found[1])
    prose = found.string.startswith(" is ", found.end()) and found.start() > 0
    if option is None or (found[2] is None and prose):
        return found[0]
    if found[2] is None:
        return _long(option.opts)
    if option.is_flag:
        return _long(option.secondary_opts if found[2] == "False" and option.secondary_opts else option.opts)
    value = found[2].strip("'\"")
    return f"{_long(option.opts)} {value if value and ' ' not in value else found[2]}"


def _long(names: Sequence[str]) -> str:
    return str(max(names, key=len))


def parse_sizes(argument: str, text: str | None) -> tuple[int, ...] | None:
    """``1,8`` as numbers, each once."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        raise InputError(f"{argument}={text!r}: expected whole numbers of at least 1 with commas between, as in 1,8.")
    return tuple(dict.fromkeys(map(int, parts)))


def check_file(flag: str, path: Path | None, suffix: str, otherwise: str = "") -> None:
    """Refuse, before any work is done, a name with another suffix and a path that cannot be written."""
    if path is None:
        return
    if path.suffix.lower() != suffix:
        raise InputError(f"{flag} is {path}, expected a name that ends in {suffix}{otherwise}.")
    check_writable(path)
