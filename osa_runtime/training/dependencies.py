"""The optional packages that training needs, asked for at the moment they are needed."""

from __future__ import annotations

from importlib import import_module

from osa_runtime.errors import MissingDependencyError

_PACKAGE_OF = {"sklearn": "scikit-learn"}


def require(*modules: str) -> None:
    """Raise a :class:`MissingDependencyError` that names the extra when one of ``modules`` is not installed."""
    for module in modules:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            package = _PACKAGE_OF.get(module, module)
            raise MissingDependencyError(
                f"Training needs the package {package}, which is not installed; run: pip install 'osa-runtime[train]'"
            ) from error
