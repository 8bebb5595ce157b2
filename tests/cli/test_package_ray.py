"""``osa package ray``: what it says, what it refuses, and with which exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from osa_runtime.cli.main import app
from osa_runtime.serving.settings import BatchSettings, ServerSettings
from osa_runtime.serving_ray.settings import RaySettings

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
        'Every machine needs: pip install "osa-runtime[cpu,serve,ray]"',
        f"On a cluster:        serve deploy '{out}/serve.json'",
        f"On this machine:     serve run '{out}/serve.json'",
    ]
    assert "no token is required" in shown.stderr


def test_every_flag_is_passed_on(exported: Exported, tmp_path: Path) -> None:
    flags = ["--at", "/srv/app", "--name", "digits", "--version-number", "4", "--replicas", "3", "--threads", "2"]
    flags += ["--target-ongoing", "5", "--upscale-delay", "1", "--downscale-delay", "2", "--device", "cuda"]
    flags += ["--max-batch", "16", "--max-delay-ms", "1.5", "--max-queue", "99", "--timeout", "7"]
    flags += ["--host", "10.1.1.1", "--http-port", "81", "--grpc-port", "82", "--route-prefix", "/d"]
    flags += ["--proxies", "HeadOnly", "--token-file", "/etc/token"]
    (tmp_path / "app").mkdir()
    shown = osa_package(exported("vit", "onnx"), "--out", tmp_path / "app", "--force", *flags, code=0)
    assert shown.stderr == ""
    assert "osa-runtime[cuda,serve,ray]" in shown.stdout
    config = json.loads((tmp_path / "app" / "serve.json").read_text())
    (application,) = config.pop("applications")
    assert config["proxy_location"] == "HeadOnly"
    assert config["http_options"] == {"host": "10.1.1.1", "port": 81}
    assert config["grpc_options"]["port"] == 82
    assert application["route_prefix"] == "/d"
    batching = BatchSettings(max_batch=16, max_delay=0.0015, max_queue=99, timeout=7.0)
    server = ServerSettings(repository=Path("/srv/app/models"), threads=2, device="cuda", batching=batching)
    read = RaySettings.read(application["args"])
    assert list(read.packed) == ["digits/4"]
    assert read == RaySettings(server, read.packed, Path("/etc/token"), "3", 5.0, 1.0, 2.0)


def test_grpc_can_be_left_out(exported: Exported, tmp_path: Path) -> None:
    local = ["--host", "127.0.0.1"]
    shown = osa_package(exported("vit", "onnx"), "--out", tmp_path / "both", *local, code=0)
    assert "opens gRPC on every interface" in shown.stderr
    shown = osa_package(exported("vit", "onnx"), "--out", tmp_path / "app", *local, "--grpc-port", "-1", code=0)
    assert shown.stderr == ""
    assert "grpc_options" not in (tmp_path / "app" / "serve.json").read_text()


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--replicas", "two"], 2, "--replicas two: expected"),
        (["--replicas", "9" * 5000], 2, "expected a number from 1 on"),
        (["--replicas", "0"], 2, "--replicas 0: expected"),
        (["--at", "app"], 2, "The path 'app/models': expected an absolute"),
        (["--timeout", "inf"], 2, "--timeout inf: expected"),
        (["--http-port", "8001"], 2, "--http-port 8001 and --grpc-port 8001 are the same"),
        (["--token-file", "token"], 2, "The path 'token'"),
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
