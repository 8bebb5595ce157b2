"""The environment: versions of installed packages, missing ones, usable cores."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from importlib import metadata

from osa_runtime.errors import MissingDependencyError


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of those that are installed, by the names of their distributions."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def missing_package(purpose: str, name: str | None, extra: str, otherwise: str = "") -> MissingDependencyError:
    """``purpose`` starts the message: "Exporting", "osa_runtime.export"; ``otherwise`` ends it, as ", or …"."""
    return MissingDependencyError(
        f'{purpose} needs {name}, which is not installed. Run: pip install "osa-runtime[{extra}]"{otherwise}.'
    )


def require_packages(purpose: str, *modules: str, extra: str = "export") -> None:
    """Ask for optional packages before the work starts."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise missing_package(purpose, ", ".join(missing), extra)


def usable_cores() -> int:
    """The cores that this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
