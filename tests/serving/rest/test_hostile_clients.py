"""Hostile clients over REST: each is refused with a 4xx, and nobody else feels it."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from canary import Target

Exported = Callable[[str, str], Path]
TENSOR: dict[str, Any] = {"name": "images", "datatype": "FP32", "shape": [1, 1, 8, 8]}
HOST = "Host: 127.0.0.1\r\n"


@pytest.fixture(scope="module")
def running(exported: Exported) -> Iterator[Target]:
    with Target(exported("vit", "onnx"), "--timeout", "3", "--max-connections", "40") as target:
        yield target


@pytest.fixture(scope="module")
def open_ended(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The same model beside one that takes batches of any size, so that large bodies can be valid."""
    home = tmp_path_factory.mktemp("open-ended")
    shutil.copytree(exported("vit", "onnx"), home / "vit-onnx")
    shutil.copytree(home / "vit-onnx", home / "large")
    with Target(home / "vit-onnx", home / "large", "--max-batch", "1000000") as target:
        yield target


@pytest.fixture
def target(running: Target) -> Iterator[Target]:
    with running.watched():
        yield running


@pytest.fixture
def large(open_ended: Target) -> Iterator[Target]:
    with open_ended.watched():
        yield open_ended


def connect(target: Target) -> socket.socket:
    host, _, port = target.server.http.partition(":")
    return socket.create_connection((host, int(port)), 30)


def send(target: Target, raw: bytes) -> bytes:
    """All that the server says to these bytes until it closes."""
    with connect(target) as sock:
        with contextlib.suppress(ConnectionError):  # it may have closed before the last byte
            sock.sendall(raw)
        return sock.makefile("rb").read()


def head(target: Target, *headers: str, path: str = "", method: str = "POST") -> bytes:
    path = path or f"/v2/models/{target.model}/infer"
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"{method} {path} HTTP/1.1\r\n{HOST}{lines}Connection: close\r\n\r\n".encode()


def infer(target: Target, body: bytes | dict[str, Any], *headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return send(target, head(target, f"Content-Length: {len(content)}", *headers) + content)


def tensor(**fields: Any) -> dict[str, Any]:
    return {"inputs": [TENSOR | {"data": [0.5] * 64} | fields]}


def status(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer[:100]
    return int(answer[9:12])


def is_refused(answer: bytes) -> bool:
    return 400 <= status(answer) < 500 and answer.count(b"HTTP/1.1 ") == 1


VALID = json.dumps(tensor()).encode()


def test_the_canary_notices_a_server_that_stands_still(running: Target) -> None:
    with pytest.raises(AssertionError, match="answers later than"), running.watched():
        os.kill(running.server.process.pid, signal.SIGSTOP)
        time.sleep(0.7)
        os.kill(running.server.process.pid, signal.SIGCONT)


def test_a_valid_request_is_answered(target: Target) -> None:
    assert status(infer(target, VALID)) == 200


MILLION, HUGE = 1_000_000, 10**4000
BODIES: dict[str, Callable[[], bytes]] = {
    "numbers for 64": lambda: json.dumps(tensor(data=[0.5] * MILLION)).encode(),
    "whole numbers for 64": lambda: json.dumps(tensor(data=[1] * MILLION)).encode(),
    "strings": lambda: json.dumps(tensor(data=["x" * 50] * MILLION)).encode(),
    "one long string": lambda: json.dumps(tensor(data=["x" * 20 * MILLION])).encode(),
    "a long number": lambda: (
        b'{"inputs":[{"name":"images","datatype":"FP32","shape":[1],"data":[' + b"1" * MILLION + b"]}]}"
    ),
    "nulls": lambda: json.dumps(tensor(data=[None] * MILLION)).encode(),
    "empty lists": lambda: json.dumps(tensor(data=[[]] * MILLION)).encode(),
    "objects": lambda: json.dumps(tensor(data=[{}] * MILLION)).encode(),
    "deep lists": lambda: b'{"inputs":' + b"[" * MILLION,
    "deep objects": lambda: b'{"a":' * MILLION,
    "an unknown field": lambda: json.dumps(tensor() | {"x": [[1, 2]] * MILLION}).encode()[:-1],
    "inputs": lambda: json.dumps({"inputs": [TENSOR | {"data": []}] * 100_000}).encode(),
    "outputs": lambda: json.dumps(tensor() | {"outputs": [{"name": "logits"}] * 400_000}).encode(),
    "parameters": lambda: json.dumps(tensor() | {"parameters": {str(i): i for i in range(MILLION)}}).encode(),
    "a long name": lambda: json.dumps(tensor(name="n" * 20 * MILLION)).encode(),
    "a long id": lambda: json.dumps(tensor() | {"id": "\U0001f40d" + "i" * 20 * MILLION}).encode(),
    "a long datatype": lambda: json.dumps(tensor(datatype="F" * 20 * MILLION)).encode(),
    "axes": lambda: json.dumps(tensor(shape=[1] * MILLION)).encode(),
    "spaces": lambda: b" " * 20 * MILLION + VALID[:-1],
    "zeros": lambda: bytes(20 * MILLION),
}


@pytest.mark.parametrize("case", BODIES)
def test_large_bodies_are_refused_by_their_length(target: Target, case: str) -> None:
    assert is_refused(infer(target, BODIES[case]()))


@pytest.mark.parametrize("case", BODIES)
def test_packed_bodies_are_unpacked_no_further_than_the_model_needs(target: Target, case: str) -> None:
    packed = gzip.compress(BODIES[case](), 6)
    assert is_refused(infer(target, packed, "Content-Encoding: gzip"))


@pytest.mark.parametrize("case", BODIES)
def test_large_bodies_that_could_be_valid_hold_nobody_up(large: Target, case: str) -> None:
    packed = zlib.compress(BODIES[case](), 1)
    assert is_refused(infer(large, packed, "Content-Encoding: deflate"))


@pytest.mark.parametrize(
    ("shape", "value"), [([1, 1, 8, 8], b"0.5"), ([10 * MILLION], b"0.5"), ([10 * MILLION, 1], b"[1]")], ids=str
)
def test_many_large_bodies_wait_for_each_other(large: Target, shape: list[int], value: bytes) -> None:
    values = b"[" + (value + b",") * (10 * MILLION - 1) + value + b"]"
    body = json.dumps(tensor(shape=shape, data=0)).encode().replace(b'"data": 0', b'"data": ' + values)
    with ThreadPoolExecutor(6) as pool:
        assert all(map(is_refused, pool.map(infer, [large] * 6, [body] * 6)))


FIELDS: dict[str, dict[str, Any]] = {
    "an empty and huge axes": tensor(shape=[0, 2**40, 2**40], data=[]),
    "many axes beside an empty one": tensor(shape=[0, *[2000] * 15], data=[]),
    "huge axes": tensor(shape=[2**62, 2**62, 2**62]),
    "an axis of many digits": tensor(shape=[HUGE]),
    "a negative axis": tensor(shape=[-1, 1, 8, 8]),
    "too many rows": tensor(shape=[33, 1, 8, 8], data=[0.5] * 33 * 64),
    "no rows": tensor(shape=[0, 1, 8, 8], data=[]),
    "a number beyond float32": tensor(data=[1e39] * 64),
    "numbers beyond the model": tensor(data=[3e38] * 64),
    "a whole number of many digits": tensor(data=[HUGE] * 64),
    "a long timeout": tensor() | {"parameters": {"timeout": -HUGE}},
    "a timeout that is a text": tensor() | {"parameters": {"timeout": "x" * 10_000}},
    "classes beyond number": tensor() | {"outputs": [{"name": "logits", "parameters": {"classification": -HUGE}}]},
    "a binary size of many digits": {"inputs": [TENSOR | {"parameters": {"binary_data_size": HUGE}}]},
    "an unknown output": tensor() | {"outputs": [{"name": "n" * 10_000}]},
    "an unknown input": tensor(name="n" * 10_000),
}


@pytest.mark.parametrize("case", FIELDS)
def test_fields_that_cannot_be_are_refused(target: Target, case: str) -> None:
    answer = infer(target, FIELDS[case])
    assert is_refused(answer)
    assert len(answer) < 2000  # what was received is not sent back


def test_a_long_timeout_is_the_servers(target: Target) -> None:
    assert status(infer(target, tensor() | {"parameters": {"timeout": HUGE}})) == 200


BROKEN: dict[str, tuple[str, bytes]] = {
    "no gzip": ("gzip", b"nonsense"),
    "gzip that ends early": ("gzip", gzip.compress(VALID)[:-9]),
    "gzip in gzip": ("gzip", gzip.compress(gzip.compress(VALID))),
    "two members": ("gzip", gzip.compress(VALID) + gzip.compress(VALID)),
    "another encoding": ("br", VALID),
    "two encodings": ("gzip, gzip", gzip.compress(gzip.compress(VALID))),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_packing_is_refused(target: Target, case: str) -> None:
    encoding, body = BROKEN[case]
    assert is_refused(infer(target, body, f"Content-Encoding: {encoding}"))


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
    "of a size that is none": b"xyz\r\n",
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
    assert 9 < time.monotonic() - began < 25


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


@pytest.mark.parametrize("kind", ["json", "binary"])
def test_a_flood_of_bad_values_slows_nobody(target: Target, kind: str) -> None:
    """NaN, Inf, values that overflow, and good ones beside them; all at once."""
    image = np.full((1, 1, 8, 8), np.nan if kind == "binary" else 3e38, np.float32)
    if kind == "binary":
        part = json.dumps({"inputs": [TENSOR | {"parameters": {"binary_data_size": 256}}]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(part))}
        body = part + image.tobytes()
    else:
        headers, body = {}, json.dumps(tensor(data=image.ravel().tolist())).encode()
    end, found = time.monotonic() + 1.5, set()

    def flood() -> None:
        with contextlib.closing(http.client.HTTPConnection(target.server.http, timeout=30)) as connection:
            while time.monotonic() < end:
                connection.request("POST", f"/v2/models/{target.model}/infer", body, headers)
                answer = connection.getresponse()
                answer.read()
                found.add(answer.status)

    with ThreadPoolExecutor(8) as pool:
        for client in [pool.submit(flood) for _ in range(8)]:
            client.result(30)
    assert found == {400 if kind == "binary" else 422}


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "169.254.169.254", "[::2]"]
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
