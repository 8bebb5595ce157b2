"""How long something takes that is not called in a loop: loading a model, starting the command."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

REPEATS, LEAST, PATIENCE = 15, 3, 6.0


def median_seconds(start: Callable[[], object], repeats: int = REPEATS) -> float:
    """After a first time, which imports libraries; fewer repeats, but three at least, when they take many seconds."""
    start()
    found: list[float] = []
    while len(found) < repeats and (len(found) < LEAST or sum(found) < PATIENCE):
        begin = time.perf_counter()
        start()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def help_seconds(repeats: int = REPEATS) -> float | None:
    """Of ``osa --help``; None where the command is not installed beside this interpreter."""
    command = Path(sys.executable).with_name("osa")
    if not command.exists():
        return None
    return median_seconds(lambda: subprocess.run([command, "--help"], capture_output=True, check=True), repeats)
