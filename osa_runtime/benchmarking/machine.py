"""The machine and the versions of a measurement, and the use of its cores by other processes.

A machine that is busy all the time produces steady figures that are still wrong: torch's threads wait for each
other at every operator, and one busy core has made eager a hundred times slower.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

from osa_runtime import __version__
from osa_runtime.benchmarking.result import plural
from osa_runtime.environment import installed_version, usable_cores
from osa_runtime.runtime.device import installed_wheels

PACKAGES = ("numpy", "torch")
CPU_INFO = Path("/proc/cpuinfo")
STAT = Path("/proc/stat")
VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2"}
TICKS_OF = {"user": 0, "nice": 1, "system": 2, "irq": 5, "softirq": 6, "steal": 7}
TOLERATED = 0.1  # of all cores


def describe_machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_entry("model name") or platform.processor() or platform.machine(),
        "instructions": _instructions(),
        "cores": usable_cores(),
        "platform": platform.platform(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "versions": {"python": platform.python_version(), "osa-runtime": __version__}
        | installed_wheels()
        | {name: version for name in PACKAGES if (version := installed_version(name))},
    }


def _cpu_entry(name: str) -> str:
    """An entry of the first core; empty where the system does not tell."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")


def _instructions() -> str:
    """The widest vector instructions, which decide the speed of products; else the name of the architecture."""
    flags = _cpu_entry("flags").split()
    return next((name for flag, name in VECTORS.items() if flag in flags), platform.machine())


class ContentionWatch:
    """Use of the cores since this was made; unknown where there is no /proc/stat."""

    def __init__(self) -> None:
        self._busy, self._own, self._start = _busy_seconds(), _own_seconds(), time.perf_counter()

    def busy_cores(self) -> float | None:
        """The average number of our cores that other processes used since the start; None if it is unknown."""
        busy = _busy_seconds()
        if busy is None or self._busy is None:
            return None
        others = (busy - self._busy) - (_own_seconds() - self._own)
        return max(0.0, others) / max(1e-9, time.perf_counter() - self._start)


def contention_doubt(busy: float | None, threads: int) -> str | None:
    """The reason not to trust a measurement with this many threads; idle cores beyond them may be used by others."""
    cores = usable_cores()
    if busy is None or busy <= max(0, cores - threads) + TOLERATED * cores:
        return None
    return (
        f"other processes used {busy:.1f} of {plural(cores, 'core')}, and {plural(threads, 'thread')} had to share; "
        "measure again when the machine is quiet, or with fewer threads."
    )


def _busy_seconds() -> float | None:
    try:
        lines = STAT.read_text(encoding="utf-8").splitlines()
        cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        rows = [line.split()[1:] for line in lines if line.split()[0] in cores]
        ticks = sum(int(row[place]) for row in rows for place in TICKS_OF.values())
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return None


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system
