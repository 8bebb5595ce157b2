"""Hostile connections and heads over REST: each is refused with a 4xx or cut off, and nobody else feels it."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from canary import Target
from rest_attack import (
    HOST,
    VALID,
    Exported,
    connect,
    head,
    infer,
    is_refused,
    send,
    status,
)

HEADS: dict[str, tuple[bytes, int]] = {
    "many headers": (b"".join(b"x-%d: y\r\n" % i for i in range(101)), 431),
    "thousands of headers": (b"a:\r\n" * 20_000, 431),
    "a long header": (b"x: " + b"y" * 70_000 + b"\r\n", 431),
    "an endless header": (b"x: " + b"y" * 5_000_000, 431),
    "length and chunks": (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400),
    "chunks and length": (b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 400),
    "two lengths": (b"Content-Length: 5\r\nContent-Length: 6\r\n", 400),
    "the same length twice": (b"Content-Length: 5\r\nContent-Length: 5\r\n", 400),
    "a list of lengths": (b"Content-Length: 5, 5\r\n", 400),
    "a negative length": (b"Content-Length: -5\r\n", 400),
    "a signed length": (b"Content-Length: +5\r\n", 400),
    "a length beyond 64 bits": (b"Content-Length: 99999999999999999999999\r\n", 400),
    "a length beyond the limit": (b"Content-Length: 9999999999999\r\n", 413),
    "chunks that are not last": (b"Transfer-Encoding: chunked, identity\r\n", 400),
    "chunks that are packed": (b"Transfer-Encoding: gzip, chunked\r\n", 400),
    "a folded header": (b"Transfer-Encoding:\r\n chunked\r\n", 400),
    "a space before the colon": (b"Transfer-Encoding : chunked\r\n", 400),
    "a line without a colon": (b"nonsense\r\n", 400),
    "a bare line feed": (b"x: y\nTransfer-Encoding: chunked\r\n", 400),
    "a null": (b"x: \0\r\n", 400),
    "two hosts": (b"Host: localhost\r\n", 400),
    "two tokens": (b"Authorization: a\r\nAuthorization: b\r\n", 400),
}


@pytest.mark.parametrize("case", HEADS)
def test_heads_that_are_too_long_or_mean_two_things_are_refused(target: Target, case: str) -> None:
    fields, expected = HEADS[case]
    smuggled = b"0\r\n\r\nGET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    start = f"POST /v2/models/{target.model}/infer HTTP/1.1\r\n{HOST}".encode()
    answer = send(target, start + fields + b"\r\n" + smuggled)
    assert (status(answer), answer.count(b"HTTP/1.1 ")) == (expected, 1)


LINES: dict[str, bytes] = {
    "no HTTP": b"nonsense\r\n\r\n",
    "TLS": b"\x16\x03\x01" + bytes(200),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "another version": b"GET /v2 HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "no path": b"GET HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a long path": b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a method of its own": b"EVIL /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "CONNECT": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no host": b"GET /v2 HTTP/1.1\r\nConnection: close\r\n\r\n",
    "no host to speak of": b"GET /v2 HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n",
}


@pytest.mark.parametrize("case", LINES)
def test_what_is_not_a_request_is_refused(target: Target, case: str) -> None:
    assert is_refused(send(target, LINES[case]))


def chunked(parts: list[bytes], extension: bytes = b"") -> bytes:
    return b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts) + b"0\r\n\r\n"


def test_a_body_in_small_chunks_is_read(target: Target) -> None:
    body = chunked([VALID[i : i + 1] for i in range(len(VALID))])
    assert status(send(target, head(target, "Transfer-Encoding: chunked") + body)) == 200


CHUNKS: dict[str, bytes] = {
    "of one byte": chunked([b" "] * 150_000),
    "of one byte with zeros before": b"0000000001\r\n \r\n" * 150_000,
    "of one byte with extensions": chunked([b" "] * 100_000, b";a=b"),
    "with a long extension": chunked([b" "], b";" + b"x" * 5_000_000),
    "without end": b"%x\r\n%b\r\n" % (1 << 20, b" " * (1 << 20)) * 20,
    "of an invalid size": b"xyz\r\n",
    "of a size beyond 64 bits": b"f" * 30 + b"\r\n",
    "with trailers": b"0\r\n" + b"x: y\r\n" * 50_000 + b"\r\n",
}


@pytest.mark.parametrize("case", CHUNKS)
def test_chunks_cost_no_more_than_the_body(target: Target, case: str) -> None:
    request = head(target, "Transfer-Encoding: chunked") + CHUNKS[case]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(is_refused, pool.map(send, [target] * 4, [request] * 4)))


def test_an_offer_of_another_protocol_is_ignored(target: Target) -> None:
    offer = ("Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
    request = head(target, f"Content-Length: {len(VALID)}", *offer) + VALID
    request = request.replace(b"Connection: close", b"Connection: Upgrade, HTTP2-Settings")
    smuggled = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    answer = send(target, request + smuggled)
    assert answer.count(b"HTTP/1.1 200") == answer.count(b"HTTP/1.1 ") == 2


def test_the_body_behind_an_offer_is_no_request(target: Target) -> None:
    smuggled = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with connect(target) as sock:
        request = head(target, f"Content-Length: {len(smuggled)}", "Upgrade: h2c")
        sock.sendall(request.replace(b"Connection: close", b"Connection: Upgrade, close"))
        time.sleep(0.1)
        sock.sendall(smuggled)
        assert is_refused(sock.makefile("rb").read())


def test_an_offer_in_pieces_ends_the_connection(target: Target) -> None:
    smuggled = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    request = head(target, f"Content-Length: {len(smuggled)}", "Upgrade: h2c")
    request = request.replace(b"Connection: close", b"Connection: Upgrade, close")
    with connect(target) as sock:
        for place in range(0, len(request), 7):
            sock.sendall(request[place : place + 7])
            time.sleep(0.003)
        sock.sendall(smuggled)
        assert is_refused(sock.makefile("rb").read())


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_may_offer_http2(target: Target) -> None:
    url = f"{target.server.url}/v2/models/{target.model}/infer"
    done = subprocess.run(["curl", "-s", "--http2", "-d", VALID, url], capture_output=True, check=True, timeout=30)
    assert json.loads(done.stdout)["outputs"][0]["name"] == "logits"


def test_pipelined_requests_are_answered_in_order(target: Target) -> None:
    one = head(target, "X: 1", path="/v2", method="GET").replace(b"Connection: close\r\n", b"")
    answer = send(target, one * 200 + head(target, path="/v2", method="GET"))
    assert answer.count(b"HTTP/1.1 200") == 201


def test_thousands_of_pipelined_requests_are_refused(target: Target) -> None:
    one = head(target, path="/v2", method="GET").replace(b"Connection: close\r\n", b"")
    with ThreadPoolExecutor(8) as pool:
        for answer in pool.map(send, [target] * 8, [one * 20_000] * 8):
            assert answer.count(b"HTTP/1.1 200") < 20_000
            assert b"HTTP/1.1 400" in answer[-400:]


def test_a_pipelined_head_without_end_is_refused(target: Target) -> None:
    request = head(target, f"Content-Length: {len(VALID)}").replace(b"Connection: close\r\n", b"") + VALID
    answer = send(target, request + b"GET / HTTP/1.1\r\nx: " + b"y" * 10_000_000)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 431" in answer


@pytest.mark.parametrize("case", ["a byte", "a head that trickles", "no body", "a body that trickles", "half a chunk"])
def test_who_does_not_send_loses_his_place(target: Target, case: str) -> None:
    pieces = {
        "a byte": [b"G"],
        "a head that trickles": [b"GET /v2 HTTP/1.1\r\n", *[b"x: y\r\n"] * 90],
        "no body": [head(target, "Content-Length: 100")],
        "a body that trickles": [head(target, "Content-Length: 1000"), *[b" "] * 900],
        "half a chunk": [head(target, "Transfer-Encoding: chunked"), b"ff\r\n "],
    }[case]
    began = time.monotonic()
    with connect(target) as sock, contextlib.suppress(ConnectionError):
        sock.settimeout(0.1)
        answer = b""
        while time.monotonic() < began + 10:
            if pieces:
                sock.sendall(pieces.pop(0))
            with contextlib.suppress(TimeoutError):
                received = sock.recv(4096)
                answer += received
                if not received:
                    break
    assert time.monotonic() - began < 8
    assert answer == b"" or status(answer) == 408


def test_who_does_not_read_loses_his_place(target: Target) -> None:
    one = head(target, f"x: {2000 * 'y'}", path="/openapi.json", method="GET")
    request = one.replace(b"Connection: close\r\n", b"")
    with connect(target) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(0.2)
        began, left = time.monotonic(), b""
        with pytest.raises(ConnectionError):
            while time.monotonic() < began + 30:
                left = left or request * 100
                with contextlib.suppress(TimeoutError):
                    left = left[sock.send(left) :]
    assert 2 < time.monotonic() - began < 15  # --timeout is 3


@pytest.mark.parametrize("what", [b"", b"GET /v2 HT", b"POST /v2/models/x/infer HTTP/1.1\r\nHost: x\r\n"], ids=len)
def test_probes_are_answered_when_every_place_is_taken(target: Target, what: bytes) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(200):  # five times the limit; the canary keeps its own place and probes over new connections
            sock = stack.enter_context(connect(target))
            sock.sendall(what)
        before = len(target.questions)
        while len(target.questions) < before + 40:
            time.sleep(0.05)


def test_a_place_that_is_not_used_goes_to_someone_else(target: Target) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(connect(target))
        time.sleep(1.2)
        assert status(infer(target, VALID)) == 200


@pytest.mark.parametrize(
    "name",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "169.254.169.254",
        "[::2]",
        "[::1].evil.example",
        "u@localhost",
        "localhost:x",
    ],
)
def test_a_name_that_is_not_this_machines_is_refused(target: Target, name: str) -> None:
    """A page whose name leads to this machine (DNS rebinding) may not use the server."""
    for path in (f"/v2/models/{target.model}", "/v2/repository/index", "/"):
        request = f"GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
        assert status(send(target, request.encode())) == 403


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000"])
def test_names_of_this_machine_are_answered(target: Target, name: str) -> None:
    request = f"GET /v2 HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
    assert status(send(target, request.encode())) == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://[", "http://127.0.0.1:1"])
def test_pages_of_others_are_refused(target: Target, origin: str) -> None:
    assert status(infer(target, VALID, f"Origin: {origin}")) == 403


def test_a_body_is_read_only_from_whoever_has_the_token(exported: Exported, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("correct-horse-battery")
    with Target(exported("vit", "onnx"), "--token-file", tmp_path / "token", token="correct-horse-battery") as locked:
        with locked.watched(), connect(locked) as sock:
            size = 60 << 20
            sock.sendall(head(locked, f"Content-Length: {size}", "Expect: 100-continue"))
            assert sock.makefile("rb").read().startswith(b"HTTP/1.1 401 ")
        with locked.watched():
            assert status(send(locked, head(locked, "Content-Length: 4000000") + b" " * 4_000_000)) == 401
            evil = "GET /v2/health/live HTTP/1.1\r\nHost: gateway.example\r\nConnection: close\r\n\r\n"
            assert status(send(locked, evil.encode())) == 200  # the token keeps others out
