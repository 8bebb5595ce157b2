"""``import osa_runtime`` offers what it says, and says what it offers."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import osa_runtime
from osa_runtime import errors


def test_every_name_in_all_exists() -> None:
    assert [name for name in osa_runtime.__all__ if not hasattr(osa_runtime, name)] == []


def test_all_has_no_duplicates() -> None:
    assert len(set(osa_runtime.__all__)) == len(osa_runtime.__all__)


def test_every_public_member_is_in_all() -> None:
    submodules = {module.name for module in pkgutil.iter_modules(osa_runtime.__path__)} | {"cli", "exporters"}
    machinery = {"annotations", "importlib", "TYPE_CHECKING", "Any"}
    public = {name for name in dir(osa_runtime) if not name.startswith("_")}
    assert public - submodules - machinery <= set(osa_runtime.__all__)


def test_every_error_is_exported() -> None:
    tree = {n for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, errors.OsaError)}
    assert tree <= set(osa_runtime.__all__)


@pytest.mark.parametrize(("name", "home"), osa_runtime._HOME_OF.items())
def test_lazy_members_are_public_in_their_home(name: str, home: str) -> None:
    module = importlib.import_module(home)
    assert name in module.__all__
    assert getattr(osa_runtime, name) is getattr(module, name)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'softmax'"):
        osa_runtime.softmax  # noqa: B018 - the access is the test


def test_missing_torch_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_torch(name: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.delitem(vars(osa_runtime), "SkiplessViT", raising=False)
    monkeypatch.setattr(importlib, "import_module", no_torch)
    with pytest.raises(errors.MissingDependencyError, match=r"needs torch.*osa-runtime\[export\]"):
        osa_runtime.SkiplessViT  # noqa: B018 - the access is the test
