"""``osa serve``: what it says, what it refuses, and with which exit code."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from osa_runtime.cli.main import app
from serving_process import ServerProcess

Exported = Callable[[str, str], Path]


def osa_serve(*arguments: str | Path, code: int) -> str:
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_the_addresses_are_shown(exported: Exported) -> None:
    server = ServerProcess(exported("vit", "onnx"))
    assert server.process.stdout is not None
    lines = [server.process.stdout.readline() for _ in range(3)]
    assert lines == [
        "vit-onnx (version 1) on cpu\n",
        f"REST and the page: http://{server.http}\n",
        f"gRPC:              {server.grpc}\n",
    ]
    assert server.stop() == 0
    assert [event["event"] for event in server.events][-2:] == ["stopped", "end of log"]


def test_what_cannot_be_served_is_said(exported: Exported, tmp_path: Path) -> None:
    assert "There is nothing to serve" in osa_serve(code=2)
    (tmp_path / "empty").mkdir()
    assert "is an empty folder" in osa_serve(tmp_path / "empty", "--http-port", "0", "--grpc-port", "0", code=3)
    torchscript = exported("vit", "torchscript")
    assert "only ONNX" in osa_serve(torchscript, "--http-port", "0", "--grpc-port", "0", code=3)


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--http-port", "-1", "--grpc-port", "-1"], 2, "Both REST and gRPC are switched off"),
        (["--tls-key", "key.pem"], 2, "go together"),
        (["--token-file", "no"], 2, "cannot be read"),
        (["--trusted-key", "no"], 2, "The key no cannot be read"),
        (["--log-level", "loud"], 2, "expected debug, info"),
        (["--http-port", "70000"], 2, "65535"),
        (["--max-batch", "0"], 2, "max-batch"),
        (["--max-body-mb", "inf"], 2, "max-body-mb"),
        (["--max-delay-ms", "inf"], 2, "max_delay=inf"),
        (["--drain", "inf"], 2, "--drain inf"),
        (["--device", "tpu", "--http-port", "0", "--grpc-port", "0"], 3, "Unknown device 'tpu'"),
        (["--repository", "no"], 3, "is not a folder"),
        (["--require-certificate", "--http-port", "0", "--grpc-port", "0"], 3, "certificate.json does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_flags_are_said(
    exported: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: list[str], code: int, message: str
) -> None:
    folder = exported("vit", "onnx")
    monkeypatch.chdir(tmp_path)
    assert message in osa_serve(folder, *flags, code=code)


def test_a_short_token_is_refused(exported: Exported, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("short")
    assert "at least 16" in osa_serve(exported("vit", "onnx"), "--token-file", tmp_path / "token", code=2)
    (tmp_path / "token").write_text("two words of a token")
    assert "without spaces" in osa_serve(exported("vit", "onnx"), "--token-file", tmp_path / "token", code=2)


def test_a_taken_port_is_said(exported: Exported) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        folder = exported("vit", "onnx")
        shown = osa_serve(folder, "--http-port", port, "--grpc-port", "0", code=3)
        assert f"Cannot listen on 127.0.0.1:{port}" in shown
        shown = osa_serve(folder, "--http-port", "0", "--grpc-port", port, code=3)
        assert f"Cannot listen on 127.0.0.1:{port}" in shown


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_certificate_that_is_none_is_said(exported: Exported, tmp_path: Path, protocol: str) -> None:
    file = tmp_path / "nonsense.pem"
    file.write_text("nonsense")
    other = "--http-port" if protocol == "grpc" else "--grpc-port"
    options = ["--tls-certificate", str(file), "--tls-key", str(file), other, "-1"]
    assert "cannot be used: " in osa_serve(exported("vit", "onnx"), *options, code=3)


def test_a_missing_package_says_how_to_get_it(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert 'pip install "osa-runtime[serve]"' in osa_serve(exported("vit", "onnx"), code=3)


def test_serving_needs_no_torch(exported: Exported, tmp_path: Path) -> None:
    """A server in a process where torch, onnx and the exporters cannot be imported."""
    folder = shutil.copytree(exported("vit", "onnx"), tmp_path / "vit")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('torch', 'onnx', 'onnxscript', 'safetensors'): sys.modules[name] = None\n"
    )
    with ServerProcess(folder, environment={"PYTHONPATH": str(tmp_path)}) as server:
        assert server.stop() == 0
