"""``osa serve --engine ray`` where Ray is missing or cannot do what is asked: a message and an exit code."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from osa_runtime.cli.main import app

Exported = Callable[[str, str], Path]

runner = CliRunner()


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.fixture
def some_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages are there; none of these tests gets as far as using them."""
    monkeypatch.setitem(sys.modules, "ray", type(sys)("ray"))
    monkeypatch.setitem(sys.modules, "ray.serve", type(sys)("ray.serve"))


@pytest.mark.usefixtures("no_ray")
def test_missing_ray_names_the_extra(tmp_path: Path) -> None:
    result = runner.invoke(app, ["serve", str(tmp_path), "--engine", "ray"])
    assert result.exit_code == 3
    assert 'pip install "osa-runtime[serve,ray]"' in result.stderr


def test_replicas_need_ray(tmp_path: Path) -> None:
    result = runner.invoke(app, ["serve", str(tmp_path), "--replicas", "2"])
    assert result.exit_code == 2
    assert "--replicas goes with --engine ray" in result.stderr


@pytest.mark.usefixtures("some_ray")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--watch", "5"], "--watch would reach one replica only"),
        (["--tls-certificate", "c.pem", "--tls-key", "k.pem"], "speak no TLS here"),
        (["--replicas", "4:1"], "replicas is '4:1'"),
        (["--http-port", "-1"], "always answers REST"),
    ],
    ids=["watch", "tls", "replicas", "no REST"],
)
def test_what_ray_cannot_do_is_refused(flags: list[str], message: str, exported: Exported) -> None:
    result = runner.invoke(app, ["serve", str(exported("vit", "onnx")), "--engine", "ray", *flags])
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.usefixtures("some_ray")
def test_a_token_in_the_environment_does_not_reach_a_ray_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSA_SERVE_TOKEN", "a-token-of-20-letters")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    result = runner.invoke(app, ["serve", str(tmp_path), "--engine", "ray"])
    assert result.exit_code == 2
    assert "give --token-file" in result.stderr


@pytest.mark.usefixtures("some_ray")
def test_a_damaged_artifact_is_said_before_ray_starts(exported: Exported, tmp_path: Path) -> None:
    damaged = shutil.copytree(exported("vit", "onnx"), tmp_path / "vit")
    with (damaged / "model.onnx").open("ab") as file:
        file.write(b"more")
    result = runner.invoke(app, ["serve", str(damaged), "--engine", "ray"])
    assert result.exit_code == 3
    assert "model.onnx" in result.stderr
