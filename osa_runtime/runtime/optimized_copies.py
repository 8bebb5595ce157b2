"""Copies of ONNX models as ONNX Runtime optimised them, in the user's cache: the next load skips that work.

A copy is a file ``KEY-HASH.ort``. The key stands for the model's files, the values that are made outputs, ONNX Runtime
and the processor. The hash is that of the copy: a file that does not have it is removed, not loaded. Whatever goes
wrong here, the model is loaded as it is.

``OSA_MODEL_CACHE`` names another folder, or is ``off``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osa_runtime.artifact import sha256
from osa_runtime.external_data import external_files
from osa_runtime.runtime.session import Source

VARIABLE, OFF = "OSA_MODEL_CACHE", ("off", "0", "no", "false")
LAYOUT = 2  # of the copies; another number leaves those of earlier releases unused
MOST_BYTES = 2**31  # of all copies; the ones that were not used for longest go first
LARGEST_MODEL = MOST_BYTES // 4  # ONNX Runtime's format ends at 2 GiB
ABANDONED = 3600.0  # seconds after which an unfinished copy belongs to a process that was killed

Start = Callable[[str, Mapping[str, str], str | None], Any]


def cache_folder() -> Path | None:
    """The folder of the copies, whether it exists or not; None where the cache is switched off."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() in OFF:
        return None
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # no home
        return (Path(base) if base else Path.home() / ".cache") / "osa-runtime" / "models"
    return None


def started_from_copy(ort: Any, source: Source, outputs: Sequence[str], start: Start) -> Any | None:
    """A session of the model's copy, or of the model while its copy is written; None where neither can be had.

    ``start(path, entries, written)`` starts a session of that file with these configuration entries, and makes it
    write what it optimised; an empty path stands for the model itself.
    """
    try:
        copies = _copies(ort, source, outputs)
        if copies is None:
            return None
        return copies.session(start) or copies.written_by(start)
    except Exception:  # noqa: BLE001 - a cache must not keep a model from loading, and the plain load names its errors
        return None


def _copies(ort: Any, source: Source, outputs: Sequence[str]) -> Copies | None:
    folder = cache_folder()
    if folder is None:
        return None
    files = {name: source.path.parent / name for name in (source.path.name, *sorted(external_files(source.path)))}
    size = sum(path.stat().st_size for path in files.values())
    if size > LARGEST_MODEL or not _is_private(folder) or shutil.disk_usage(folder).free < 4 * size:
        return None
    known = source.artifact.manifest.files if source.artifact is not None and source.hashed else {}
    facts = {
        "layout": LAYOUT,
        "files": [known[name].sha256 if name in known else sha256(path) for name, path in files.items()],
        "outputs": list(outputs),
        "onnxruntime": [ort.__version__, ort.get_build_info()],
        "processor": processor(),
    }
    return Copies(folder, hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32])


def _is_private(folder: Path) -> bool:
    """True if no other user can write there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    return not hasattr(os, "getuid") or (
        found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


@functools.cache
def processor() -> str:
    """The model and the instructions of the processor, which ONNX Runtime optimised for."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
        wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")
        lines = [line for line in first.splitlines() if line.partition("\t")[0].partition(":")[0].strip() in wanted]
    except OSError:
        lines = []
    return "\n".join([platform.machine(), platform.processor(), *lines])


@dataclass(frozen=True)
class Copies:
    """The copies of one model in a folder; there is more than one only while two processes write."""

    folder: Path
    key: str

    def session(self, start: Start) -> Any | None:
        for path in self.folder.glob(f"{self.key}-*.ort"):
            try:
                if sha256(path) == path.stem.rpartition("-")[2]:
                    session = start(str(path), {}, None)
                    os.utime(path)
                    return session
            except Exception:  # noqa: BLE001 - whatever is wrong with it, it is removed
                pass
            path.unlink(missing_ok=True)
        return None

    def written_by(self, start: Start) -> Any:
        handle, name = tempfile.mkstemp(prefix=".", suffix=".ort", dir=self.folder)
        os.close(handle)
        try:
            session = start("", {"session.save_model_format": "ORT"}, name)
            with contextlib.suppress(OSError):
                os.replace(name, self.folder / f"{self.key}-{sha256(Path(name))}.ort")
                self._make_room()
            return session
        finally:
            Path(name).unlink(missing_ok=True)

    def _make_room(self) -> None:
        """Remove what was not used for longest, and what other processes left unfinished."""
        total = 0
        found = sorted(((path.stat(), path) for path in self.folder.glob("*.ort")), key=lambda x: -x[0].st_mtime)
        for about, path in found:
            total += about.st_size
            if total > MOST_BYTES or (path.name.startswith(".") and about.st_mtime < time.time() - ABANDONED):
                path.unlink(missing_ok=True)
