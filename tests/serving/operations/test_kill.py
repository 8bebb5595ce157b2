"""A server that is killed at the worst moment starts again as if nothing had been: same files, same ports."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from osa_runtime.artifact import sha256
from serving_process import ServerProcess
from small_models import feeds

pytestmark = pytest.mark.slow

Exported = Callable[[str, str], Path]
IMAGES = feeds("vit", 1)["images"]
TENSOR = {"name": "images", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": IMAGES.ravel().tolist()}
BODY = json.dumps({"inputs": [TENSOR]})


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): sha256(path) for path in folder.rglob("*") if path.is_file()}


def ask(address: str, path: str, body: str = "") -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection(address, timeout=30)) as connection:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()


def kill(server: ServerProcess) -> tuple[str, str]:
    """Its ports."""
    server.process.kill()
    assert server.stop() == -signal.SIGKILL
    return server.http.rpartition(":")[2], server.grpc.rpartition(":")[2]


def test_under_load(exported: Exported, tmp_path: Path) -> None:
    shutil.copytree(exported("vit", "onnx"), tmp_path / "vit" / "1")
    before = contents(tmp_path)
    server = ServerProcess("--repository", tmp_path)
    answered: list[int] = []
    lost: list[Exception] = []

    def client() -> None:
        try:
            while True:
                answered.append(ask(server.http, "/v2/models/vit/infer", BODY)[0])
        except (OSError, http.client.HTTPException) as error:  # cut off, never half an answer
            lost.append(error)

    clients = [threading.Thread(target=client) for _ in range(4)]
    for thread in clients:
        thread.start()
    while len(answered) < 50:
        time.sleep(0.01)
    ports = kill(server)
    for thread in clients:
        thread.join(30)
    assert set(answered) == {200}
    assert len(lost) == 4
    assert contents(tmp_path) == before
    with ServerProcess("--repository", tmp_path, ports=ports) as again:
        assert ask(again.http, "/v2/models/vit/infer", BODY)[0] == 200


@pytest.mark.parametrize("delay", [0.0, 0.03])
def test_while_it_loads_a_new_version(exported: Exported, tmp_path: Path, delay: float) -> None:
    home = tmp_path / "models"
    shutil.copytree(exported("vit", "onnx"), home / "vit" / "1")
    server = ServerProcess("--repository", home)
    shutil.copytree(exported("vit", "onnx"), tmp_path / "incoming").rename(home / "vit" / "2")
    before = contents(home)
    host, _, port = server.http.partition(":")
    with socket.create_connection((host, int(port)), 30) as sock:
        sock.sendall(b"POST /v2/repository/models/vit/load HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\n\r\n")
        time.sleep(delay)
        ports = kill(server)
    assert contents(home) == before
    with ServerProcess("--repository", home, ports=ports) as again:
        status, content = ask(again.http, "/v2/models/vit/infer", BODY)
        assert (status, json.loads(content)["model_version"]) == (200, "2")


def test_while_it_starts(exported: Exported, tmp_path: Path) -> None:
    shutil.copytree(exported("vit", "onnx"), tmp_path / "vit" / "1")
    before = contents(tmp_path)
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        http_port, grpc_port = (str(probe.getsockname()[1]) for probe in sockets)
    command = [sys.executable, "-m", "osa_runtime.cli", "serve", "--repository", str(tmp_path)]
    command += ["--http-port", http_port, "--grpc-port", grpc_port]
    for seconds in (0.3, 0.8, 1.3):
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        child.kill()
        assert child.wait(30) == -signal.SIGKILL
        assert contents(tmp_path) == before
    with ServerProcess("--repository", tmp_path, ports=(http_port, grpc_port)) as server:
        assert ask(server.http, "/v2/models/vit/infer", BODY)[0] == 200
        assert server.stop() == 0
