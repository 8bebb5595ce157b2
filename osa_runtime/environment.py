"""The environment of this process: usable cores, versions of packages, and missing packages."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from importlib import metadata

from osa_runtime.errors import MissingDependencyError

PACKAGE_OF = {"sklearn": "scikit-learn"}


def usable_cores() -> int:
    """The number of cores that this process may use, which a container or taskset may have limited."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def installed_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def package_versions(distributions: Iterable[str]) -> dict[str, str]:
    """The versions of the packages that are installed."""
    return {name: version for name in distributions if (version := installed_version(name)) is not None}


def require(purpose: str, *modules: str, extra: str) -> None:
    """Raise an error, before any work is done, if one of ``modules`` is not installed; ``extra`` installs them.

    ``purpose`` is the start of the message: Training, Exporting.
    """
    missing = [PACKAGE_OF.get(name, name) for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise missing_package(purpose, " and ".join(missing), extra)


def missing_package(purpose: str, name: str | None, extra: str, otherwise: str = "") -> MissingDependencyError:
    """The error for a missing package; ``otherwise`` is the end of the message, as ", or …"."""
    return MissingDependencyError(
        f"{purpose} needs {name}, which {'are' if ' and ' in str(name) else 'is'} not installed. "
        f'Run: pip install "osa-runtime[{extra}]"{otherwise}.'
    )
