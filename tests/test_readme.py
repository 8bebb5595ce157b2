"""What the README shows works: its Python runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from osa_runtime.cli.main import app

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def commands(program: str) -> list[list[str]]:
    lines = [line for block in blocks("console") for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith(f"{program} ")]


@pytest.mark.parametrize("code", blocks("python"), ids=["operators", "models"])
def test_python_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("arguments", commands("osa"), ids=" ".join)
def test_command_and_its_options_exist(arguments: list[str]) -> None:
    shown = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert shown.exit_code == 0, shown.output
    assert all(option in shown.output for option in arguments if option.startswith("--"))


@pytest.mark.parametrize("arguments", commands("make"), ids=" ".join)
def test_make_target_exists(arguments: list[str], checkout: Path) -> None:
    makefile = (checkout / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{arguments[0]}:.*##", makefile, re.MULTILINE)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_links_within_the_checkout_lead_somewhere(document: str, checkout: Path) -> None:
    targets = re.findall(r"\]\(([^)]+)\)", (checkout / document).read_text(encoding="utf-8"))
    assert [t for t in targets if "://" not in t and not (checkout / t).exists()] == []
