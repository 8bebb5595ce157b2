"""Writing files and folders so that nobody ever sees half of one.

Everything is written under a temporary name beside its destination and renamed at the end.
When the writing fails or is interrupted, the temporary is removed and the destination is as it was.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from osa_runtime.errors import StorageError


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path to write; on success it replaces ``path`` in one step."""
    target = Path(path)
    with _storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent)
        os.close(handle)
    temporary = Path(name)
    try:
        with _storage_errors(target):
            yield temporary
            _open_permissions(temporary, 0o666)
            os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str], *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder to fill; on success it becomes ``path``.

    With ``replace`` an existing folder is moved aside, swapped, and removed only after the swap.
    """
    target = Path(path)
    if target.exists() and not replace:
        raise StorageError(f"{target} exists already; choose another folder, or say that it may be replaced (--force).")
    with _storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    retired = temporary.with_name(temporary.name + ".old")
    try:
        with _storage_errors(target):
            yield temporary
            _open_permissions(temporary, 0o777)
            if target.exists():
                os.replace(target, retired)
            try:
                os.replace(temporary, target)
            except OSError:
                if retired.exists():
                    os.replace(retired, target)
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        _remove(retired)


def _open_permissions(path: Path, mode: int) -> None:
    """mkstemp and mkdtemp make private entries; give the result the mode an ordinary write would have."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(mode & ~umask)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _storage_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"Cannot write {target}: {reason}. Nothing was changed there; "
            "check the path, its permissions and the free space."
        ) from error
