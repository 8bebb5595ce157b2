"""The pages of the site: each has an address in its navigation, links lead to addresses, references are complete."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import osa_runtime


@pytest.fixture(scope="module")
def assembled(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, Path]:
    spec = importlib.util.spec_from_file_location("assemble", checkout / "docs" / "assemble.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    build = tmp_path_factory.mktemp("build")
    module.main(build)
    return module, build / "pages"


def addresses(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from addresses(inner)


def test_every_page_is_in_the_navigation_once(assembled: tuple[ModuleType, Path], checkout: Path) -> None:
    listed = list(addresses(tomllib.loads((checkout / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]))
    pages = [str(page.relative_to(assembled[1])) for page in assembled[1].rglob("*.md")]
    assert sorted(listed) == sorted(pages), "name every page in zensical.toml, and no other"


def test_links_lead_to_pages(assembled: tuple[ModuleType, Path]) -> None:
    for page in assembled[1].rglob("*.md"):
        targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        local = [target.partition("#")[0] for target in targets if "://" not in target]
        assert [target for target in local if target and not (page.parent / target).exists()] == [], page


def test_links_to_sources_become_text(assembled: tuple[ModuleType, Path], checkout: Path) -> None:
    source = checkout / "docs" / "export.md"
    text = "[code](../osa_runtime/arrays.py), [page](../README.md#x), [web](https://x.org), ![a [b]](idea.svg), [c](#d)"
    relinked = assembled[0].relinked(text, source, assembled[0].page_addresses())
    assert relinked == "code, [page](index.md#x), [web](https://x.org), ![a [b]](idea.svg), [c](#d)"


def test_references_hold_every_public_name(assembled: tuple[ModuleType, Path]) -> None:
    api = (assembled[1] / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: osa_runtime\.(\w+)$", api, re.MULTILINE)
    assert sorted(listed) == sorted(set(osa_runtime.__all__) - {"__version__"})
    functions = (assembled[1] / "ai-osa.md").read_text(encoding="utf-8")
    assert all(f"\n## {name}\n" in functions for name in assembled[0].PUBLIC_FUNCTIONS)
    assert "exp(S)·V with S = scale·(QKᵀ − KQᵀ)" in functions
