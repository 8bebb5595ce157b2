"""The environment of this process: the cores it may use, the versions of packages, and packages that are missing."""

from __future__ import annotations

import importlib.util
import os
from importlib import metadata

from osa_runtime.errors import MissingDependencyError

PACKAGE_OF = {"sklearn": "scikit-learn"}


def usable_cores() -> int:
    """The cores that this process may use, which a container or taskset may have limited."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def installed_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def require(purpose: str, *modules: str, extra: str) -> None:
    """Raise before any work is done when one of ``modules`` is not installed; ``extra`` is the one that brings them.

    ``purpose`` begins the message: Training, Exporting.
    """
    missing = [PACKAGE_OF.get(name, name) for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        verb = "are" if len(missing) > 1 else "is"
        raise MissingDependencyError(
            f"{purpose} needs {', '.join(missing)}, which {verb} not installed; "
            f"run: pip install 'osa-runtime[{extra}]'."
        )
