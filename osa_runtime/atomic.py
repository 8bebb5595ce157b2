"""Atomic writing of files and folders: readers never see half of one.

Everything is written under a temporary name next to its destination and renamed at the end.
When the writing fails or is interrupted, the temporary is removed and the destination is as it was, even where
another package has dropped the exception of the interrupt.
Temporaries of a process that was killed are removed by the next writer of the same destination: the
temporary's name contains the process id.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from osa_runtime.errors import InputError, StorageError

RETIRED = ".old"

stopping: list[BaseException] = []  # what a signal asked to raise; nothing gets its final name from then on


def check_not_stopping() -> None:
    if stopping:
        raise stopping[-1]


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path to write; on success it replaces ``path`` in one step."""
    target = Path(path)
    with _storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        handle, name = tempfile.mkstemp(prefix=_prefix(target), suffix=target.suffix, dir=target.parent)
        os.close(handle)
    temporary = Path(name)
    try:
        with _storage_errors(target):
            yield temporary
            _open_permissions(temporary, 0o666)
            check_not_stopping()
            os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str], *, replace: bool = False, marker: str | None = None) -> Iterator[Path]:
    """Yield a temporary folder to fill; on success it becomes ``path``.

    With ``replace`` an existing folder is moved aside, swapped, and removed only after the swap, if it is empty or
    holds the file ``marker``, which distinguishes folders that we wrote from others.
    """
    target = Path(path)
    with _storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        check_replaceable(target, replace=replace, marker=marker)
        temporary = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
    retired = temporary.with_name(temporary.name + RETIRED)
    try:
        with _storage_errors(target):
            yield temporary
            _open_permissions(temporary, 0o777)
            check_replaceable(target, replace=replace, marker=marker)  # it may have appeared in the meantime
            check_not_stopping()
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


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise an error if ``atomic_file`` would, before there is anything to write; nothing is left behind."""
    target = Path(path)
    _check_place(target)
    if target.is_dir():
        raise InputError(f"{target} is a folder; expected the name of a file.")


def _check_place(target: Path) -> None:
    """Check that a temporary can be created next to the target, or where its folder will be created."""
    with _storage_errors(target):
        existing = next(folder for folder in target.absolute().parents if folder.exists())
        handle, name = tempfile.mkstemp(prefix=_prefix(target), dir=existing)
        os.close(handle)
        os.unlink(name)


def check_replaceable(target: Path, *, replace: bool, marker: str | None) -> None:
    """Raise an error if ``atomic_folder`` would: for a target that exists and must not be replaced."""
    _check_place(target)
    if not target.exists():
        return
    if not replace:
        raise StorageError(f"{target} exists already; choose another folder, or allow its replacement (replace=True).")
    if not target.is_dir():
        raise StorageError(f"{target} is a file, expected a folder; files are never replaced. Choose another name.")
    if any(target.iterdir()) and not (marker and (target / marker).is_file()):
        reason = f"it has no {marker}, so it is not one that was written here before" if marker else "it is not empty"
        raise StorageError(f"{target} will not be replaced: {reason}. Choose another folder, or remove it yourself.")


def _prefix(target: Path) -> str:
    return f".{target.name}.{os.getpid()}-"


def _sweep(target: Path) -> None:
    """Remove the temporaries of this destination whose processes are gone.

    One of them may hold the destination itself: moved aside, and not yet replaced when the process was killed.
    """
    for path in target.parent.glob(f".{glob.escape(target.name)}.*-*"):
        process = path.name[len(target.name) + 2 :].partition("-")[0]
        if process.isdecimal() and not _is_running(int(process)):
            if path.name.endswith(RETIRED) and not target.exists():
                os.replace(path, target)
            else:
                _remove(path)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is running and belongs to another user
        return True
    return True


def _open_permissions(path: Path, mode: int) -> None:
    """Set the mode of an ordinary write: mkstemp and mkdtemp make private entries."""
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


def check_apart(out: str | Path, source: str | Path) -> None:
    """Check that replacing ``out`` does not touch ``source``, the folder or file that it is made from."""
    target, origin = Path(out).resolve(), Path(source).resolve()
    if target == origin:
        relation = "is"
    elif target in origin.parents:
        relation = "contains"
    elif origin in target.parents:
        relation = "lies inside"
    else:
        return
    raise StorageError(f"out={out} {relation} its source, {source}; choose a separate folder.")
