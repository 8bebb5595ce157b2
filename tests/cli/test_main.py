"""The ``osa`` program as a whole: help, version, and how errors leave it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import osa_runtime
from osa_runtime import errors
from osa_runtime.cli.main import app, run

OSA = Path(sys.executable).with_name("osa")
runner = CliRunner()


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


@pytest.fixture
def boom() -> Iterator[Callable[[BaseException], None]]:
    """Adds a command ``boom`` that raises the given error, for the time of one test."""
    commands = list(app.registered_commands)
    yield lambda error: app.command("boom")(raising(error)) and None
    app.registered_commands[:] = commands


def run_osa(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Call the entry point of the installed script in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["osa", *arguments])
    with pytest.raises(SystemExit) as left:
        run()
    return int(left.value.code or 0)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]], ids=["nothing", "--help", "-h"])
def test_help(arguments: list[str]) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0
    for word in ("train", "data", "doctor", "Exit codes"):
        assert word in result.output


@pytest.mark.parametrize(
    "command", [["train"], ["data"], ["data", "fetch"], ["data", "list"], ["run"], ["doctor"]], ids=" ".join
)
def test_every_command_explains_itself(command: list[str]) -> None:
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"osa-runtime {osa_runtime.__version__}\n")


@pytest.mark.parametrize(
    "arguments", [["no-such-command"], ["--no-such-flag"], ["doctor", "--no-such-flag"]], ids=" ".join
)
def test_wrong_usage_leaves_with_2(arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.OsaError("nothing works"), 3),
        (errors.ConfigError("heads must divide dim"), 2),
        (errors.DataError("pip install osa-runtime[train]"), 3),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_our_errors_become_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], boom, error: errors.OsaError, code: int
) -> None:
    boom(error)
    assert run_osa(monkeypatch, "boom") == code
    assert capsys.readouterr() == ("", f"error: {error}\n")


def test_interrupt_leaves_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], boom) -> None:
    boom(KeyboardInterrupt())
    assert run_osa(monkeypatch, "boom") == 130
    assert capsys.readouterr().err == "error: Interrupted.\n"


DROPPED = """
import contextlib, os, sys, time
from pathlib import Path
from osa_runtime.atomic import atomic_file
from osa_runtime.cli import main

class Thing:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[2]))
        time.sleep(0)  # the handler runs here, and Python drops what it raises

@main.app.command()
def boom(number: int, out: Path = None):
    with atomic_file(out) if out else contextlib.nullcontext() as path:
        Thing()
        if out:
            path.write_text("whole")

main.run()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("writes", [True, False], ids=["a file", "nothing"])
def test_an_interrupt_that_python_drops_is_obeyed(tmp_path: Path, number: int, writes: bool) -> None:
    """In a finaliser or a callback, where another package may be when the signal comes."""
    out = ["--out", str(tmp_path / "out")] if writes else []
    command = [sys.executable, "-c", DROPPED, "boom", str(int(number)), *out]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert "Exception ignored in" in done.stderr
    assert done.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_a_bug_shows_its_traceback_and_asks_for_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], boom
) -> None:
    boom(ZeroDivisionError("by design"))
    assert run_osa(monkeypatch, "boom") == 70
    complaint = capsys.readouterr().err
    assert "Traceback" in complaint
    assert "ZeroDivisionError: by design" in complaint
    assert "Please report it" in complaint


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--version"], ["data", "list"]], ids=" ".join)
def test_reader_that_leaves_early_causes_no_noise(arguments: list[str]) -> None:
    child = subprocess.Popen([OSA, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait() == 141


@pytest.mark.slow
def test_module_and_script_are_the_same_program() -> None:
    by_script = subprocess.run([OSA, "--version"], capture_output=True, check=True)
    for name in ("osa_runtime", "osa_runtime.cli"):
        by_module = subprocess.run([sys.executable, "-m", name, "--version"], capture_output=True, check=True)
        assert by_module.stdout == by_script.stdout


COMPLETE = """
eval "$(osa --show-completion bash 2>/dev/null || osa --show-completion)"
complete -p osa > /dev/null
COMP_WORDS=({words}); COMP_CWORD=$(({count} - 1))
_osa_completion osa
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="completion is tried in bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["osa", "ex"], ["export"]),
        (["osa", "package", "tri"], ["triton"]),
        (["osa", "export", "--sq"], ["--squarings"]),
        (["osa", "export", "--format", "t"], ["torchscript"]),
        (["osa", "quantize", "--for"], ["--force"]),
    ],
    ids=" ".join,
)
def test_bash_completes_commands_options_and_choices(words: list[str], expected: list[str]) -> None:
    script = COMPLETE.format(words=" ".join(words), count=len(words))
    environment = os.environ | {"PATH": f"{OSA.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.split() == expected, done.stderr


@pytest.mark.slow
def test_help_starts_fast() -> None:
    # processor time, not time on the wall: other work on the machine must not decide this test
    def once() -> float:
        child = subprocess.Popen([OSA, "--help"], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        return usage.ru_utime + usage.ru_stime

    assert min(once() for _ in range(5)) < 0.5
