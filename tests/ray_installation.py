"""Ray in an environment of its own next to the checkout's: it is large, and the other tests do without it."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tomllib
from pathlib import Path

REQUIREMENT = ".[cpu,serve,ray]"


class NotInstalled(Exception):
    """The packages cannot be had here."""


def ray_python(checkout: Path) -> Path:
    """The interpreter of ``.venv-ray``, which is made once and made again when the pins change."""
    home = checkout / ".venv-ray"
    stamp, wanted = home / "installed", _fingerprint(checkout)
    with (checkout / ".venv-ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test processes may ask at the same time
        if not stamp.is_file() or stamp.read_text() != wanted:
            _run([sys.executable, "-m", "venv", "--clear", str(home)], checkout)
            pip = [str(home / "bin" / "python"), "-m", "pip", "install", "-qq", "-c", "constraints.txt"]
            _run([*pip, "-e", REQUIREMENT], checkout)
            stamp.write_text(wanted)
    return home / "bin" / "python"


def _fingerprint(checkout: Path) -> str:
    """The dependencies of the environment; other lines of pyproject.toml may change without a new one."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [project["dependencies"], project["optional-dependencies"], sys.version]
    pins = (checkout / "constraints.txt").read_text(encoding="utf-8")
    return hashlib.sha256((repr(wanted) + pins).encode()).hexdigest()


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotInstalled(f"{' '.join(command[-3:])}: {done.stderr.strip()[-500:]}")
