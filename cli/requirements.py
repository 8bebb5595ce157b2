"""Optional packages are asked for before a command starts its work."""

from __future__ import annotations

import importlib.util

from osa_runtime.errors import MissingDependencyError


def require_packages(purpose: str, *names: str) -> None:
    """``purpose`` is the first word of the message: Exporting, Verifying. All of them are in the extra ``export``."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"{purpose} needs {', '.join(missing)}, which is not installed; pip install 'osa-runtime[export]'."
        )
