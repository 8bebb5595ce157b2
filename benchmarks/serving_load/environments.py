"""A virtual environment for each server, made once, outside the checkout, all with the same ONNX Runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "osa-benchmarks"
PINS = {
    "kserve": ("kserve==0.21.0", "onnxruntime==1.31.1"),
    "mlserver": ("mlserver==1.7.1", "onnxruntime==1.31.1"),
}
INSTALL_SECONDS = 900


class Missing(Exception):
    """The server cannot be had here; the message says why."""


def environment(name: str) -> Path:
    """The folder with the programs of that server's environment."""
    home, stamp = CACHE / name, CACHE / name / "installed"
    wanted = "\n".join((sys.version, *PINS[name]))
    if not stamp.is_file() or stamp.read_text() != wanted:
        print(f"installing {PINS[name][0]} into {home}", flush=True)
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=False)
        _install(home, PINS[name])
        stamp.write_text(wanted)
    return home / "bin"


def _install(home: Path, pins: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "--quiet", *pins]
    try:
        child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{pins[0]} could not be installed within {INSTALL_SECONDS} s") from error
    if child.returncode != 0:
        raise Missing(f"{pins[0]} cannot be installed here: {child.stderr.strip().rpartition(chr(10))[2]}")
