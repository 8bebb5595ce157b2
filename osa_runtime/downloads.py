"""Packages fetched through the machine's own package client, and their files, checked by hash.

Nothing is unpacked to disk: files are read from an archive into memory by name, so that a hostile archive has no path
to escape with.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from osa_runtime.errors import DataError, StorageError

TIMEOUT_SECONDS = 900


def data_folder(chosen: str | os.PathLike[str] | None = None) -> Path:
    """The folder of fetched files: ``chosen``, otherwise $OSA_DATA, otherwise ~/.cache/osa-runtime."""
    return Path(chosen or os.environ.get("OSA_DATA") or Path.home() / ".cache" / "osa-runtime")


def fetch_archive(client: str, package: str, otherwise: str) -> bytes:
    """The archive of a package by its name; ``otherwise`` is what to do where that fails, for the message."""
    try:
        with tempfile.TemporaryDirectory(prefix="osa-fetch-") as scratch:
            return _CLIENTS[client](package, Path(scratch), otherwise)
    except OSError as error:
        raise StorageError(f"Cannot fetch {package}: {error.strerror or error}; check the temporary folder.") from error


def _npm_archive(package: str, scratch: Path, otherwise: str) -> bytes:
    _run(["npm", "pack", package, "--ignore-scripts", "--silent"], scratch, otherwise)
    return _only_file(scratch, "*.tgz", package).read_bytes()


def _debian_archive(package: str, scratch: Path, otherwise: str) -> bytes:
    _run(["apt-get", "download", package], scratch, otherwise)
    archive = _only_file(scratch, "*.deb", package)
    return _run(["dpkg-deb", "--fsys-tarfile", archive.name], scratch, otherwise)


_CLIENTS: dict[str, Callable[[str, Path, str], bytes]] = {"npm": _npm_archive, "apt-get": _debian_archive}


def _run(command: list[str], scratch: Path, otherwise: str) -> bytes:
    program = command[0]
    if shutil.which(program) is None:
        raise DataError(f"Fetching needs the program {program}, which is not installed; install it, or {otherwise}.")
    try:
        done = subprocess.run(command, cwd=scratch, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise DataError(
            f"{program} did not answer within {TIMEOUT_SECONDS} s; check the network and try again."
        ) from error
    if done.returncode:
        reason = _last_line(done.stderr) or f"exit code {done.returncode}"
        raise DataError(
            f"{' '.join(command[:3])} failed ({reason}); check the network and the package lists, or {otherwise}."
        )
    return done.stdout


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1].strip().rstrip(".") if lines else ""


def _only_file(scratch: Path, pattern: str, package: str) -> Path:
    found = sorted(scratch.glob(pattern))
    if len(found) != 1:
        raise DataError(f"The package {package} came as {len(found)} files instead of one; try again.")
    return found[0]


def read_archive(package: str, content: bytes, wanted: Callable[[str], bool], limit: int) -> dict[str, bytes]:
    """Up to ``limit`` + 1 bytes of the files of a tar archive whose names, without folders, are ``wanted``."""
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                stream = archive.extractfile(member) if wanted(name) and member.isfile() else None
                if stream is not None:
                    files[name] = stream.read(limit + 1)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"The package {package} is damaged ({error}); fetch it again.") from error
    return files


def check_hashes(of: str, files: Mapping[str, bytes], sha256: Mapping[str, str]) -> None:
    """Check that each file that has a digest in ``sha256`` is there, with that content."""
    for name, expected in sha256.items():
        if name not in files:
            raise DataError(f"{name} is missing among the files of {of}; expected are {', '.join(sha256)}.")
        found = hashlib.sha256(files[name]).hexdigest()
        if found != expected:
            raise DataError(
                f"{name} of {of} has the sha256 {found[:16]}… instead of {expected[:16]}…; "
                "it is damaged or another file, and was not stored."
            )
