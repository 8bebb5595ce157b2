"""The package that users install holds every file of the checkout, in the right place, and its pins fit its ranges."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import osa_runtime

TOP_FOLDERS = {"osa_runtime": "osa_runtime", "cli": "osa_runtime.cli", "exporters": "osa_runtime.exporters"}


@pytest.fixture(scope="module")
def project(checkout: Path) -> dict[str, Any]:
    return tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pins(checkout: Path) -> dict[str, str]:
    lines = (checkout / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def requirements(project: dict[str, Any]) -> list[Requirement]:
    metadata = project["project"]
    groups = [metadata["dependencies"], *metadata["optional-dependencies"].values()]
    return [Requirement(text) for group in groups for text in group]


def modules_in(checkout: Path) -> dict[str, Path]:
    """Every Python file of the package by the path that it has when installed."""
    found = {}
    for folder, package in TOP_FOLDERS.items():
        for file in (checkout / folder).rglob("*.py"):
            inside = Path(*package.split(".")) / file.relative_to(checkout / folder)
            found[inside.as_posix()] = file
    return found


def test_every_folder_with_code_is_listed(checkout: Path, project: dict[str, Any]) -> None:
    folders = {Path(module).parent.as_posix().replace("/", ".") for module in modules_in(checkout)}
    assert folders == set(project["tool"]["setuptools"]["packages"])


def test_every_package_has_an_init(checkout: Path) -> None:
    modules = modules_in(checkout)
    assert {f"{Path(m).parent.as_posix()}/__init__.py" for m in modules} <= set(modules)


def test_wheel_holds_every_module(checkout: Path, installed_copy: Path) -> None:
    installed = {p.relative_to(installed_copy).as_posix() for p in installed_copy.rglob("*.py")}
    assert installed == set(modules_in(checkout))


def test_wheel_puts_only_osa_runtime_into_site_packages(installed_copy: Path) -> None:
    names = {path.name for path in installed_copy.iterdir()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"osa_runtime"}


def test_wheel_is_typed_and_licensed(installed_copy: Path) -> None:
    assert (installed_copy / "osa_runtime" / "py.typed").is_file()
    assert list(installed_copy.glob("*.dist-info/licenses/LICENSE"))


def test_version_is_the_same_everywhere(checkout: Path, project: dict[str, Any]) -> None:
    assert project["project"]["version"] == osa_runtime.__version__
    assert f"## [{osa_runtime.__version__}]" in (checkout / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_requirement_is_pinned_within_its_range(project: dict[str, Any], pins: dict[str, str]) -> None:
    for requirement in requirements(project):
        pinned = pins[canonicalize_name(requirement.name)]
        assert pinned in requirement.specifier, f"{requirement} does not admit the tested {pinned}"


def test_pins_hold_on_every_machine(checkout: Path) -> None:
    text = (checkout / "constraints.txt").read_text(encoding="utf-8")
    assert not re.search(r"://|@|\+|^-", text, re.MULTILINE), "no hosts, paths, options or local versions"
