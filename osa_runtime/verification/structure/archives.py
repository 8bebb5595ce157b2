"""The zip archives that torch writes: their entries, if all readers see the same."""

from __future__ import annotations

import zipfile
from pathlib import Path

from osa_runtime.runtime.torch_archives import refuse_ambiguous
from osa_runtime.verification.structure.graph import MalformedGraphError


def read_entries(path: Path) -> dict[str, bytes]:
    """The entries by name, without the folder that all of them are in."""
    try:
        refuse_ambiguous(path)
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            contents = {name: archive.read(name) for name in names}
    except (OSError, ValueError, NotImplementedError, RuntimeError, zipfile.BadZipFile) as error:
        raise MalformedGraphError(f"{path.name} cannot be read as an archive: {error}") from error
    roots = {name.partition("/")[0] for name in names}
    if len(roots) != 1:
        raise MalformedGraphError(f"{path.name} has several folders: {', '.join(sorted(roots))}")
    return {name.partition("/")[2]: content for name, content in contents.items()}
