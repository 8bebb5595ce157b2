"""The output of ``osa export``: its plan, its steps, its result."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from osa_runtime.artifact import Artifact


class ExportReport:
    def __init__(self, verbose: bool) -> None:
        self._console = Console(highlight=False)
        self._verbose = verbose

    def check(self, options: dict[str, Any], out: Path, replace: bool) -> None:
        """Refuse before the long work what can be refused by then."""
        from osa_runtime.artifact import MANIFEST_FILE
        from osa_runtime.atomic import check_replaceable
        from osa_runtime.exporters.settings import ExportSettings

        ExportSettings(**options)
        check_replaceable(out, replace=replace, marker=MANIFEST_FILE)

    def plan(self, source: object, out: Path, options: dict[str, Any], static: bool) -> None:
        from osa_runtime.artifact import MANIFEST_FILE
        from osa_runtime.formats import FORMATS

        self._console.print(f"Would export {source} to {out}:", soft_wrap=True)
        model = FORMATS[options["format"]].file
        files = [model, *([f"{model}.data"] if options["external_data"] else []), MANIFEST_FILE]
        self._console.print(f"  {', '.join(files)}", soft_wrap=True)
        chosen = {name: value for name, value in options.items() if value not in (None, False)} | {"static": static}
        self._console.print("  " + ", ".join(f"{name}={value}" for name, value in chosen.items()), soft_wrap=True)

    def step(self, name: str, seconds: float | None) -> None:
        if seconds is None and not self._verbose:
            self._console.print(f"[dim]·[/dim] {name}")
        elif seconds is not None and self._verbose:
            self._console.print(f"[dim]·[/dim] {name}  [dim]{seconds:.2f} s[/dim]")

    def result(self, artifact: Artifact) -> None:
        manifest = artifact.manifest
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        size = sum(entry.size for entry in manifest.files.values())
        rows = {
            "artifact": str(artifact.folder),
            "format": manifest.format + (f", opset {manifest.opset}" if manifest.opset else "") + f", {manifest.dtype}",
            "inputs": "  ".join(map(str, manifest.inputs)),
            "outputs": "  ".join(map(str, manifest.outputs)),
            "parameters": f"{manifest.parameters:,}",
            "size": f"{size / 2**20:.2f} MiB",
            "attention": ", ".join(
                f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
                for k, v in (asdict(manifest.osa) if manifest.osa is not None else {}).items()
            ),
        }
        for name, value in rows.items():
            if value:
                table.add_row(f"[bold]{name}[/bold]", value.replace("[", r"\["))
        self._console.print(table)
        self._console.print("It agrees with eager on its example, and with every dynamic axis at other sizes.")


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
