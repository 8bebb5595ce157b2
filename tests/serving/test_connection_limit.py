"""Connections beyond the limit are refused in a way that clients understand, and leave no trace."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from osa_runtime.serving.connections import TOLD, Connections
from serving_process import ServerProcess

grpcclient = pytest.importorskip("tritonclient.grpc")
from tritonclient.utils import InferenceServerException  # noqa: E402 - after the skip

MOST = 3


@pytest.fixture(scope="module")
def small(exported: Callable[[str, str], Path]) -> Iterator[ServerProcess]:
    with ServerProcess(exported("vit", "onnx"), "--max-connections", str(MOST)) as running:
        yield running
        assert running.noise == []


def get(connection: http.client.HTTPConnection, path: str) -> tuple[int, str | None, bytes]:
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.getheader("retry-after"), answer.read()


def wait_for_open(connection: http.client.HTTPConnection, count: int) -> None:
    for _ in range(1000):
        if f"osa_serve_connections {count}.0".encode() in get(connection, "/metrics")[2]:
            return
        time.sleep(0.01)
    raise AssertionError(f"there are not {count} connections")


def test_http_beyond_the_limit_is_told_to_come_back(small: ServerProcess) -> None:
    with contextlib.ExitStack() as stack:
        inside = [
            stack.enter_context(contextlib.closing(http.client.HTTPConnection(small.http, timeout=30)))
            for _ in range(MOST)
        ]
        for connection in inside:
            assert get(connection, "/v2/health/ready")[0] == 200
        for path in ("/v2/health/ready", "/v2"):
            with contextlib.closing(http.client.HTTPConnection(small.http, timeout=30)) as outside:
                status, retry, content = get(outside, path)
                assert (status, retry) == (503, "1")
                assert json.loads(content)["error"].startswith(f"The server has {MOST} connections open, its limit")
        assert [get(connection, "/v2/health/ready")[0] for connection in inside] == [200] * MOST
        inside.pop().close()
        wait_for_open(inside[0], MOST - 1)
        with contextlib.closing(http.client.HTTPConnection(small.http, timeout=30)) as again:
            assert get(again, "/v2/health/ready")[0] == 200


def test_a_refused_client_may_send_its_whole_request_first(small: ServerProcess) -> None:
    host, _, port = small.http.partition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(MOST):
            stack.enter_context(socket.create_connection((host, int(port)), 30))
        time.sleep(0.1)
        sock = stack.enter_context(socket.create_connection((host, int(port)), 30))
        sock.sendall(
            b"POST /v2/models/x/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n" + b" " * 1_000_000
        )
        assert sock.makefile("rb").read().startswith(b"HTTP/1.1 503 ")


def test_grpc_beyond_the_limit_is_refused(small: ServerProcess) -> None:
    with contextlib.ExitStack() as stack:
        watcher = stack.enter_context(contextlib.closing(http.client.HTTPConnection(small.http, timeout=30)))
        host, _, port = small.grpc.partition(":")
        socks = [stack.enter_context(socket.create_connection((host, int(port)), 30)) for _ in range(MOST - 1)]
        wait_for_open(watcher, MOST)
        client = grpcclient.InferenceServerClient(small.grpc)
        for _ in range(3):
            with pytest.raises(InferenceServerException, match=f"UNAVAILABLE.*{MOST} connections open, its limit"):
                client.get_server_metadata(client_timeout=5)
        for sock in socks:
            sock.close()
        wait_for_open(watcher, 1)
        for _ in range(500):  # the refused connection says good-bye after a while, and the client comes again
            with contextlib.suppress(InferenceServerException):
                assert client.get_server_metadata().name == "osa-runtime"
                break
            time.sleep(0.05)
        else:
            raise AssertionError("the client was never let in")
        client.close()


def test_a_flood_of_connections_disturbs_nobody_who_is_inside(small: ServerProcess) -> None:
    host, _, port = small.http.partition(":")
    with contextlib.closing(http.client.HTTPConnection(small.http, timeout=30)) as inside:
        wait_for_open(inside, 1)
        with contextlib.ExitStack() as stack:
            for _ in range(3 * TOLD):
                with contextlib.suppress(ConnectionError):
                    stack.enter_context(socket.create_connection((host, int(port)), 30))
            wait_for_open(inside, MOST)
        wait_for_open(inside, 1)
    with contextlib.closing(http.client.HTTPConnection(small.http, timeout=30)) as after:
        assert get(after, "/v2/health/ready")[0] == 200


def test_those_beyond_are_counted_until_they_have_gone() -> None:
    connections = Connections(1)
    assert connections.enter()
    refused = [connections.enter() for _ in range(TOLD + 1)]
    assert not any(refused)
    assert connections.overrun
    connections.leave(False)
    assert not connections.overrun
    connections.leave(True)
    assert connections.enter()
    assert (connections.open, connections.refused) == (1, TOLD)


def test_plain_text_on_a_port_with_tls_takes_no_place(
    exported: Callable[[str, str], Path], certificate: tuple[Path, Path]
) -> None:
    chain, key = certificate
    with ServerProcess(
        exported("vit", "onnx"), "--max-connections", "1", "--tls-certificate", chain, "--tls-key", key
    ) as server:
        host, _, port = server.http.partition(":")
        with socket.create_connection((host, int(port)), 30) as sock:
            sock.sendall(b"GET /v2 HTTP/1.1\r\n\r\n")
            sock.makefile("rb").read()
        context = ssl.create_default_context(cafile=str(chain))
        with contextlib.closing(http.client.HTTPSConnection(server.http, context=context, timeout=30)) as connection:
            assert get(connection, "/v2/health/ready")[0] == 200
            with contextlib.closing(http.client.HTTPSConnection(server.http, context=context, timeout=30)) as beyond:
                assert get(beyond, "/v2/health/ready")[:2] == (503, "1")
