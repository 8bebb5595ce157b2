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

from osa_runtime.serving.engine.limits import MAX_REFUSED, Connections
from osa_runtime.serving.grpc.server import SPARE
from serving_process import ServerProcess

grpcclient = pytest.importorskip("tritonclient.grpc")
from tritonclient.utils import InferenceServerException  # noqa: E402 - after the skip

LIMIT = 3


@pytest.fixture(scope="module")
def small(exported: Callable[[str, str], Path]) -> Iterator[ServerProcess]:
    with ServerProcess(exported("vit", "onnx"), "--max-connections", str(LIMIT)) as running:
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
            for _ in range(LIMIT)
        ]
        for connection in inside:
            assert get(connection, "/v2/health/ready")[0] == 200
        with contextlib.closing(http.client.HTTPConnection(small.http, timeout=30)) as outside:
            status, retry, content = get(outside, "/v2")
            assert (status, retry) == (503, "1")
            assert json.loads(content)["error"].startswith(f"The server has {LIMIT} connections open, its limit")
            assert get(outside, "/v2/health/live")[0] == get(outside, "/v2/health/ready")[0] == 200
        assert [get(connection, "/v2/health/ready")[0] for connection in inside] == [200] * LIMIT
        inside.pop().close()
        wait_for_open(inside[0], LIMIT - 1)
        with contextlib.closing(http.client.HTTPConnection(small.http, timeout=30)) as again:
            assert get(again, "/v2/health/ready")[0] == 200


def test_a_refused_client_may_send_its_whole_request_first(small: ServerProcess) -> None:
    host, _, port = small.http.partition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(LIMIT):
            stack.enter_context(socket.create_connection((host, int(port)), 30))
        time.sleep(0.1)
        sock = stack.enter_context(socket.create_connection((host, int(port)), 30))
        sock.sendall(
            b"POST /v2/models/x/infer HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000000\r\n\r\n" + b" " * 1_000_000
        )
        assert sock.makefile("rb").read().startswith(b"HTTP/1.1 503 ")


def test_grpc_calls_beyond_the_limit_are_refused_and_probes_are_not(small: ServerProcess) -> None:
    """A call takes a place as a connection of REST does; an open stream is a call."""
    with contextlib.ExitStack() as stack:
        watcher = stack.enter_context(contextlib.closing(http.client.HTTPConnection(small.http, timeout=30)))
        clients = [
            stack.enter_context(contextlib.closing(grpcclient.InferenceServerClient(small.grpc))) for _ in range(LIMIT)
        ]
        for client in clients[1:]:
            client.start_stream(lambda result, error: None)
        wait_for_open(watcher, LIMIT)
        for _ in range(3):
            with pytest.raises(InferenceServerException, match=f"UNAVAILABLE.*{LIMIT} connections open, its limit"):
                clients[0].get_server_metadata(client_timeout=5)
            assert clients[0].is_server_live()
            assert clients[0].is_server_ready()
        for client in clients[1:]:
            client.stop_stream()
        wait_for_open(watcher, 1)
        assert clients[0].get_server_metadata().name == "osa-runtime"


def test_grpc_connections_have_a_limit_of_their_own(small: ServerProcess) -> None:
    host, _, port = small.grpc.partition(":")
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(contextlib.closing(grpcclient.InferenceServerClient(small.grpc)))
        assert client.is_server_live()
        socks = [stack.enter_context(socket.create_connection((host, int(port)), 30)) for _ in range(LIMIT + SPARE + 5)]
        closed = 0
        for sock in socks:
            sock.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                while sock.recv(1000):
                    sock.settimeout(0.05)
                closed += 1
        assert closed >= 5
        assert client.is_server_live()


def test_a_flood_of_connections_disturbs_nobody_who_is_inside(small: ServerProcess) -> None:
    host, _, port = small.http.partition(":")
    with contextlib.closing(http.client.HTTPConnection(small.http, timeout=30)) as inside:
        wait_for_open(inside, 1)
        with contextlib.ExitStack() as stack:
            for _ in range(3 * MAX_REFUSED):
                with contextlib.suppress(ConnectionError):
                    stack.enter_context(socket.create_connection((host, int(port)), 30))
            wait_for_open(inside, LIMIT)
        wait_for_open(inside, 1)
    with contextlib.closing(http.client.HTTPConnection(small.http, timeout=30)) as after:
        assert get(after, "/v2/health/ready")[0] == 200


def test_those_beyond_are_counted_until_they_have_gone() -> None:
    connections = Connections(1)
    assert connections.enter()
    refused = [connections.enter() for _ in range(MAX_REFUSED + 1)]
    assert not any(refused)
    assert connections.overrun
    connections.leave(False)
    assert not connections.overrun
    connections.leave(True)
    assert connections.enter()
    assert (connections.open, connections.refused) == (1, MAX_REFUSED)


def test_plain_text_on_a_port_with_tls_takes_no_place(
    exported: Callable[[str, str], Path], certificate: tuple[Path, Path]
) -> None:
    chain, key = certificate
    with ServerProcess(
        exported("vit", "onnx"),
        "--max-connections",
        "1",
        "--timeout",
        "2",
        "--tls-certificate",
        chain,
        "--tls-key",
        key,
    ) as server:
        host, _, port = server.http.partition(":")
        with socket.create_connection((host, int(port)), 30) as silent:  # a handshake that never comes
            began = time.monotonic()
            assert silent.recv(1) == b""
            assert time.monotonic() - began < 8
        with socket.create_connection((host, int(port)), 30) as sock:
            sock.sendall(b"GET /v2 HTTP/1.1\r\n\r\n")
            sock.makefile("rb").read()
        context = ssl.create_default_context(cafile=str(chain))
        with contextlib.closing(http.client.HTTPSConnection(server.http, context=context, timeout=30)) as connection:
            assert get(connection, "/v2/health/ready")[0] == 200
            with contextlib.closing(http.client.HTTPSConnection(server.http, context=context, timeout=30)) as beyond:
                assert get(beyond, "/v2")[:2] == (503, "1")
