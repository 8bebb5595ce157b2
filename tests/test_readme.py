"""What the README and the pages in docs/ show works: its Python runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from osa_runtime.cli.main import app

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").glob("*.md")))]


def blocks(language: str) -> list[tuple[str, str]]:
    """(page, code) of every block in the language."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return [(page, code) for page in PAGES for code in pattern.findall((ROOT / page).read_text(encoding="utf-8"))]


def commands(program: str) -> list[list[str]]:
    lines = [line for _, block in blocks("console") for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith(f"{program} ")]


@pytest.mark.parametrize(("page", "code"), blocks("python"), ids=lambda text: text if text in PAGES else "")
def test_python_runs(page: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, page, "exec"), {})


@pytest.mark.parametrize("arguments", commands("osa"), ids=" ".join)
def test_command_and_its_options_exist(arguments: list[str]) -> None:
    shown = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert shown.exit_code == 0, shown.output
    assert all(option in shown.output for option in arguments if option.startswith("--"))


@pytest.mark.parametrize("arguments", commands("make"), ids=" ".join)
def test_make_target_exists(arguments: list[str], checkout: Path) -> None:
    makefile = (checkout / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{arguments[0]}:.*##", makefile, re.MULTILINE)


@pytest.mark.parametrize("document", [*PAGES, "CONTRIBUTING.md", "osa_runtime/ops/README.md"])
def test_links_within_the_checkout_lead_somewhere(document: str, checkout: Path) -> None:
    page = checkout / document
    targets = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    assert [t for t in targets if "://" not in t and not (page.parent / t.partition("#")[0]).exists()] == []
