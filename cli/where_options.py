"""The options that say where a model runs, the same in every command that runs one."""

from __future__ import annotations

from typing import Annotated

import typer

WHERE = "Where it runs"

Device = Annotated[str, typer.Option(help="cpu, cuda, or cuda:1.", rich_help_panel=WHERE)]
AllowFallback = Annotated[
    bool, typer.Option("--allow-fallback", help="Use the CPU where --device cannot be used.", rich_help_panel=WHERE)
]
