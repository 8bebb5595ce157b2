"""On which machine and with which versions a figure was measured: without them it means nothing."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from osa_runtime import __version__
from osa_runtime.runtime.wheels import installed_wheels

PACKAGES = ("numpy", "torch")
CPU_INFO = Path("/proc/cpuinfo")


def usable_cores() -> int:
    """The cores that this process may use, which a container or taskset may have limited."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "platform": platform.platform(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "versions": {"python": platform.python_version(), "osa-runtime": __version__}
        | installed_wheels()
        | {name: version for name in PACKAGES if (version := _version(name))},
    }


def _cpu_model() -> str:
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
