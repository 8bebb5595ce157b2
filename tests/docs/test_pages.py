"""The README and the pages in docs/ are right: their Python runs, their commands exist, their links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from osa_runtime import SkiplessViT, Standardisation, ViTConfig, save_checkpoint
from osa_runtime.cli.main import app
from pages import PAGES, ROOT, TUTORIAL, blocks, commands, follow


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks("python", page) and page != TUTORIAL])
def test_python_runs_in_order_in_one_folder(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for code in blocks("python", page):
        exec(compile(code, page, "exec"), {})


NEVER_RUN = ("osa data fetch", "make ")  # the network, all of this again


@pytest.mark.slow
@pytest.mark.parametrize(
    "trained", [pytest.param(False, id="without training"), pytest.param(True, id="whole", marks=pytest.mark.long)]
)
def test_the_tutorial_works_letter_by_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: bool) -> None:
    """Every block of the tutorial in order, in one folder; without training, a checkpoint is there from the start."""
    monkeypatch.chdir(tmp_path)
    if not trained:
        pixels = Standardisation((4.9,), (6.0,), (0.0, 16.0))
        save_checkpoint(SkiplessViT(ViTConfig(classes=10, depth=2)), "runs/digits/checkpoint", standardisation=pixels)
    pattern = re.compile(r"^```(python|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
    for language, code in pattern.findall((ROOT / TUTORIAL).read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(code, TUTORIAL, "exec"), {})
            continue
        for line in code.splitlines():
            if not line.startswith((*NEVER_RUN, *(() if trained else ("osa train digits",)))):
                follow(shlex.split(line, comments=True))


@pytest.mark.parametrize("arguments", commands("osa"), ids=" ".join)
def test_command_and_its_options_exist(arguments: list[str]) -> None:
    command, words = get_command(app), iter(arguments)
    while isinstance(command, TyperGroup) and not (word := next(words, "--help")).startswith("--"):
        command = command.commands[word]
    known = {
        "--help",
        *(option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)),
    }
    assert {word for word in arguments if word.startswith("--")} <= known


@pytest.mark.parametrize("arguments", commands("make"), ids=" ".join)
def test_make_target_exists(arguments: list[str], checkout: Path) -> None:
    makefile = (checkout / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{arguments[0]}:.*##", makefile, re.MULTILINE)


@pytest.mark.parametrize("document", [*PAGES, "CONTRIBUTING.md", "osa_runtime/ops/README.md"])
def test_links_within_the_checkout_lead_somewhere(document: str, checkout: Path) -> None:
    page = checkout / document
    targets = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    assert [t for t in targets if "://" not in t and not (page.parent / t.partition("#")[0]).exists()] == []
