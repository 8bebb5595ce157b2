"""``osa package ray``: what it says, what it refuses, and with which exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from osa_runtime.cli.main import app

Exported = Callable[[str, str], Path]


def osa_package(*arguments: str | Path, code: int) -> Result:
    result = CliRunner().invoke(app, ["package", "ray", *map(str, arguments)])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def test_the_models_and_what_to_do_next_are_shown(exported: Exported, tmp_path: Path) -> None:
    out = tmp_path / "my app"
    shown = osa_package(exported("vit", "onnx"), "--out", out, "--replicas", "1:4", code=0)
    assert shown.stdout.splitlines() == [
        "vit-onnx (version 1) on cpu, replicas: 1:4",
        f"Then, on every machine: . '{out}/environment.sh'; ray start …",
        f"and once:               serve deploy '{out}/serve.yaml'",
    ]
    assert "no token will be asked for" in shown.stderr


def test_every_flag_is_passed_on(exported: Exported, tmp_path: Path) -> None:
    flags = ["--at", "/srv/app", "--name", "digits", "--version-number", "4", "--replicas", "3", "--threads", "2"]
    flags += ["--target-ongoing", "5", "--upscale-delay", "1", "--downscale-delay", "2", "--device", "cuda"]
    flags += ["--max-batch", "16", "--max-delay-ms", "1.5", "--max-queue", "99", "--timeout", "7"]
    flags += ["--host", "10.1.1.1", "--http-port", "81", "--grpc-port", "82", "--route-prefix", "/d"]
    flags += ["--proxies", "HeadOnly", "--token-file", "/etc/token"]
    (tmp_path / "app").mkdir()
    shown = osa_package(exported("vit", "onnx"), "--out", tmp_path / "app", "--force", *flags, code=0)
    assert shown.stderr == ""
    text = (tmp_path / "app" / "serve.yaml").read_text()
    for line in (
        'repository: "/srv/app/models"',
        '"digits/4": ',
        "replicas: 3",
        "threads: 2",
        "target_ongoing: 5.0",
        "upscale_delay: 1.0",
        "downscale_delay: 2.0",
        'device: "cuda"',
        "max_batch: 16",
        "max_delay_ms: 1.5",
        "max_queue: 99",
        "timeout: 7.0",
        'host: "10.1.1.1"',
        "port: 81",
        "port: 82",
        'route_prefix: "/d"',
        "proxy_location: HeadOnly",
        'token_file: "/etc/token"',
        "osa-runtime[cuda,serve,ray]",
    ):
        assert line in text


def test_grpc_can_be_left_out(exported: Exported, tmp_path: Path) -> None:
    osa_package(exported("vit", "onnx"), "--out", tmp_path / "app", "--grpc-port", "-1", code=0)
    assert "grpc_options" not in (tmp_path / "app" / "serve.yaml").read_text()


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--replicas", "two"], 2, "replicas is 'two'"),
        (["--replicas", "0"], 2, "replicas is 0"),
        (["--at", "app"], 2, "--at is app"),
        (["--timeout", "inf"], 2, "timeout is inf"),
        (["--http-port", "8001"], 2, "are both 8001"),
        (["--token-file", "token"], 2, "token is relative"),
        (["--require-certificate"], 3, "certificate"),
        (["--out", "."], 3, "exists already"),
        (["--out", ".", "--force"], 3, "will not be replaced"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_flags_are_said(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    assert message in osa_package(exported("vit", "onnx"), "--out", "app", *flags, code=code).output
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_ray_is_not_needed_and_what_is_has_a_name(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    osa_package(exported("vit", "onnx"), "--out", tmp_path / "app", code=0)
    monkeypatch.setitem(sys.modules, "orjson", None)
    shown = osa_package(exported("vit", "onnx"), "--out", tmp_path / "other", code=3)
    assert 'pip install "osa-runtime[serve]"' in shown.stderr
