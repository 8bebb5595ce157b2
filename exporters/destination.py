"""Where an artifact may go: not over, into or around what it is made from."""

from __future__ import annotations

from pathlib import Path

from osa_runtime.errors import StorageError


def check_apart(out: str | Path, source: str | Path) -> None:
    """``source`` is a checkpoint folder or a file of weights; replacing ``out`` must not touch it."""
    target, origin = Path(out).resolve(), Path(source).resolve()
    if target == origin:
        relation = "is"
    elif target in origin.parents:
        relation = "contains"
    elif origin in target.parents:
        relation = "lies inside"
    else:
        return
    raise StorageError(f"out={out} {relation} the source of the export, {source}; choose a folder of its own.")
