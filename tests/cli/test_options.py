"""The library names arguments of Python, the command line its flags."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from osa_runtime.cli.main import app
from osa_runtime.cli.options import in_flags

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
COMMAND = re.compile(r"`+[^`]*`+")  # `osa export --out NAME`: a whole command may be shown to anyone


def shown_texts(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a module that are not docstrings; the parts of an f-string as one, with … for its values."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    scopes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    skipped = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, scopes) and is_text(node.body[0])}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield node.lineno, "".join(p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def flags_in(path: Path) -> list[str]:
    """A list of strings, such as the words of a command for a subprocess, is not a message."""
    found = [(line, text) for line, text in shown_texts(path) if FLAG.search(COMMAND.sub("", text))]
    return [f"{path}:{line}: {text}" for line, text in found if not FLAG.fullmatch(text)]


def test_the_library_shows_no_flags(checkout: Path) -> None:
    # The page of a certificate shows the command that repeats it; its style sheet has variables of such names.
    pages = checkout / "osa_runtime" / "verification" / "page"
    modules = [*(checkout / "osa_runtime").rglob("*.py"), *(checkout / "exporters").rglob("*.py")]
    assert len(modules) > 150
    assert [line for path in modules if pages not in path.parents for line in flags_in(path)] == []


def parameters(command: str) -> list[object]:
    found = get_command(app)
    for name in command.split():
        found = found.commands[name]  # type: ignore[attr-defined]
    return list(found.params)


CASES: dict[str, tuple[str, str, str]] = {
    "number": ("export", "squarings=99: expected auto.", "--squarings 99: expected auto."),
    "text": ("export", "format='onxx': expected onnx", "--format onxx: expected onnx"),
    "spaces": ("export", "factory='a b' is", "--factory 'a b' is"),
    "empty": ("export", "factory='': expected", "--factory '': expected"),
    "colon": ("export", "factory='m:f' raised", "--factory m:f raised"),
    "flag": ("export", "(replace=True).", "(--force)."),
    "two words": ("export", "external_data=True is", "--external-data is"),
    "switched off": ("bench", "with memory=False.", "with --no-memory."),
    "end of a sentence": ("train", "a rate below lr=0.001.", "a rate below --lr 0.001."),
    "must": ("train", "epochs must be at least 1, got 0.", "--epochs must be at least 1, got 0."),
    "is": ("package ray", "timeout is inf, expected", "--timeout is inf, expected"),
    "another name": ("package triton", "preferred=64: expected", "--preferred-batch 64: expected"),
    "argument of another command": ("run", "squarings=99", "squarings=99"),
    "prose": ("export", "The format is onnx; it must be read.", "The format is onnx; it must be read."),
    "code": ("quantize", "numpy.savez('c', images=…)", "numpy.savez('c', images=…)"),
    "a comparison": ("export", "a==b, x>=1", "a==b, x>=1"),
}


@pytest.mark.parametrize("case", CASES)
def test_arguments_become_flags(case: str) -> None:
    command, message, expected = CASES[case]
    assert in_flags(message, parameters(command)) == expected
