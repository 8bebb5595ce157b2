"""The pages of the documentation, their blocks of code, and how a test follows a command."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from osa_runtime.cli.main import app

ROOT = Path(__file__).parent.parent
TUTORIAL = "docs/tutorial.md"
PAGES = ["README.md", *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").glob("*.md")))]


def blocks(language: str, page: str) -> list[str]:
    """Every block in the language, in order."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return pattern.findall((ROOT / page).read_text(encoding="utf-8"))


def commands(program: str) -> list[list[str]]:
    lines = [line for page in PAGES for block in blocks("console", page) for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith(f"{program} ")]


def follow(command: list[str]) -> None:
    """In this process, which has loaded torch; only servers are started. Benchmarks measure for a shorter time."""
    if command[1] != "serve":
        done = CliRunner().invoke(app, command[1:] + ["--seconds", "0.1"] * (command[1] == "bench"))
        assert done.exit_code == 0, f"{command}: {done.output}"
        return
    ports = ["--http-port", "0", "--grpc-port", "0"]  # other tests may serve at the same time
    words = [sys.executable, "-m", "osa_runtime", *command[1:], *ports]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        assert any(line.startswith("REST and the page") for line in server.stdout)
        server.send_signal(signal.SIGINT)
        server.stdout.read()
        assert server.wait(60) in (0, 130)
