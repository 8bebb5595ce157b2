"""What the processes of a server use, and what everybody else on the machine does meanwhile (Linux)."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def family(process: int) -> list[int]:
    """The process and all below it."""
    found = [process]
    for parent in found:
        for file in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(child) for child in file.read_text().split()]
            except OSError:  # the thread has ended meanwhile
                continue
    return found


def memory(process: int) -> float:
    """Megabytes of a process and those below it; pages that they share are counted once (PSS)."""
    total = 0
    for member in family(process):
        lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


class Busyness:
    """Who used the cores since this was made: the given processes, this one, and all others."""

    def __init__(self, processes: Iterable[int]) -> None:
        self._processes = tuple(processes)
        self._start = self._read()

    def look(self) -> tuple[float, float]:
        """The seconds that the processes used, and how many cores everybody else kept busy."""
        now, machine, theirs, here = (end - start for end, start in zip(self._read(), self._start, strict=True))
        return theirs, max(0.0, (machine - theirs - here) / now)

    def _read(self) -> tuple[float, float, float, float]:
        fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        busy = sum(fields) - fields[3] - fields[4]  # all but idle and waiting for disks
        members = {member for process in self._processes for member in family(process)}
        return time.perf_counter(), busy / TICKS, sum(map(_seconds, members)), _seconds(os.getpid())


def _seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def describe() -> dict[str, object]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"processor": name, "cores": os.cpu_count(), "python": platform.python_version()} | {
        package: metadata.version(package) for package in ("osa-runtime", "numpy", "uvloop", "tritonclient")
    }
