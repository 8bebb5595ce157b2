"""REST on the wire: both ways into inference, wrong requests, limits, headers, metrics."""

from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.parse
from typing import Any

import numpy as np
import pytest

from serving_process import ServerProcess
from small_models import feeds

INFER = "/v2/models/vit/infer"


def ask(
    server: ServerProcess, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(server.http, timeout=30)
    content = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
    connection.request(method, path, content, headers or {})
    answer = connection.getresponse()
    result = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return result


def raw(server: ServerProcess, content: bytes) -> bytes:
    """Everything that the server sends until it closes the connection."""
    parts = urllib.parse.urlsplit(f"//{server.http}")
    with socket.create_connection((parts.hostname, parts.port), 30) as sock:
        sock.sendall(content)
        received = b""
        while chunk := sock.recv(65536):
            received += chunk
    return received


def request_body(rows: int = 1, **more: Any) -> dict[str, Any]:
    images = feeds("vit", rows)["images"]
    tensor = {"name": "images", "datatype": "FP32", "shape": list(images.shape), "data": images.ravel().tolist()}
    return {"inputs": [tensor]} | more


def test_both_ways_into_inference_give_the_same_answer(server: ServerProcess) -> None:
    # a request that waits for 100-continue goes through ASGI, any other past it
    body = json.dumps(request_body(3, id="a")).encode()
    status, headers, direct = ask(server, "POST", INFER, body)
    assert (status, headers["content-type"]) == (200, "application/json")
    head = f"POST {INFER} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
    through_asgi = raw(server, head.encode() + b"expect: 100-continue\r\n\r\n" + body)
    assert b"HTTP/1.1 200 OK" in through_asgi
    assert json.loads(through_asgi.rpartition(b"\r\n\r\n")[2]) == json.loads(direct)


WRONG: dict[str, tuple[str, str, Any, int, str]] = {
    "path": ("GET", "/v3", None, 404, "no such path"),
    "method": ("GET", INFER, None, 405, "no such path or method"),
    "model": ("POST", "/v2/models/no/infer", request_body(), 404, "unknown model"),
    "model name": ("POST", "/v2/models/%2e%2e%2fvit/infer", request_body(), 404, "unknown model"),
    "slash in name": ("GET", "/v2/models/../../etc/passwd", None, 404, "no such path"),
    "version": ("POST", "/v2/models/vit/versions/0/infer", request_body(), 400, "version string"),
    "empty": ("POST", INFER, b"", 400, "not valid JSON"),
    "no JSON": ("POST", INFER, b"\xff\xfe", 400, "not valid JSON"),
    "huge shape": (
        "POST",
        INFER,
        {"inputs": [{"name": "images", "datatype": "FP32", "shape": [2**40, 256], "data": [1]}]},
        413,
        "expected at most",
    ),
    "deep": ("POST", INFER, b'{"inputs":' + b"[" * 50_000, 400, "Expected `object`, got `array` - at `$.inputs[0]`"),
    "too long": ("POST", INFER, b" " * 1_100_000, 413, "limit"),
    "load unknown": ("POST", "/v2/repository/models/no/load", b"", 404, "no such model"),
    "load escaping": ("POST", "/v2/repository/models/%2e%2e/load", b"", 404, "no such model"),
    "load with files": (
        "POST",
        "/v2/repository/models/vit/load",
        {"parameters": {"file:1/model.onnx": "x"}},
        400,
        "not supported",
    ),
    "index": ("POST", "/v2/repository/index", {"ready": 1}, 400, "Expected `bool`, got `int` - at `$.ready`"),
    "index no JSON": ("POST", "/v2/repository/index", b"{", 400, "not valid JSON"),
    "shared memory": ("GET", "/v2/systemsharedmemory/status", None, 501, "not part of this server"),
    "other origin": ("POST", INFER, request_body(), 403, "another origin"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(server: ServerProcess, case: str) -> None:
    method, path, body, status, message = WRONG[case]
    headers = {"Origin": "http://elsewhere.example"} if case == "other origin" else {}
    found, fields, content = ask(server, method, path, body, headers)
    assert (found, fields["content-type"]) == (status, "application/json")
    assert message in json.loads(content)["error"]


def test_a_body_that_announces_too_much_is_not_read(server: ServerProcess) -> None:
    answer = raw(server, f"POST {INFER} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {1 << 50}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"limit of this server" in answer


def test_a_chunked_body_is_read_up_to_the_limit(server: ServerProcess) -> None:
    body = json.dumps(request_body()).encode()
    head = f"POST {INFER} HTTP/1.1\r\nhost: [::1]\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n".encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:10], body[10:])) + b"0\r\n\r\n"
    assert raw(server, head + chunks).startswith(b"HTTP/1.1 200 OK")
    endless = b"".join(b"%x\r\n%s\r\n" % (1 << 18, b" " * (1 << 18)) for _ in range(5))
    assert raw(server, head + endless).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("content", [b"nonsense\r\n\r\n", b"POST / HTTP/9\r\n\r\n", b"\x16\x03\x01" + b"\0" * 50])
def test_what_is_not_http_is_refused(server: ServerProcess, content: bytes) -> None:
    assert raw(server, content).startswith(b"HTTP/1.1 400")


def test_pipelined_requests_are_answered(server: ServerProcess) -> None:
    body = json.dumps(request_body()).encode()
    one = f"POST {INFER} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    last = one.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)
    answer = raw(server, one + last)
    assert answer.count(b"HTTP/1.1 200 OK") == answer.count(b"HTTP/1.1") == 2
    assert answer.count(b"connection: close") == 1


def test_a_head_that_comes_again_means_the_same_again(server: ServerProcess) -> None:
    """The server parses a head once and knows it when it is repeated: only then, and only the head."""
    images = feeds("vit", 8)["images"]
    expected = [json.loads(ask(server, "POST", INFER, _raw_body(image)[1], _raw_body(image)[0])[2]) for image in images]
    connection = http.client.HTTPConnection(server.http, timeout=30)

    def infer(body: bytes, headers: dict[str, str], path: str = INFER) -> tuple[int, Any]:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    for image, wanted in zip(images, expected, strict=True):
        headers, body = _raw_body(image)
        assert infer(body, headers) == (200, wanted)
        assert infer(body, headers) == (200, wanted)
        assert infer(b" " * len(body), headers)[0] == 400  # the same head, another body
        assert infer(body, headers, INFER.replace("vit", "tiv"))[0] == 404  # as long, and another model
        assert infer(body, headers | {"Origin": "http://elsewhere.example"})[0] == 403
        assert infer(body[:-4], headers)[0] == 400
    connection.close()


def test_a_repeated_head_may_come_in_pieces_or_with_the_next(server: ServerProcess) -> None:
    headers, body = _raw_body(feeds("vit", 1)["images"][0])
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {INFER} HTTP/1.1\r\nhost: 127.0.0.1\r\n{fields}content-length: {len(body)}\r\n\r\n".encode()
    host, _, port = server.http.partition(":")
    with socket.create_connection((host, int(port)), 30) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = sock.makefile("rb")
        for pieces in ([head + body], [head + body], [head, body], [head[:30], head[30:] + body], [head + body]):
            for piece in pieces:
                sock.sendall(piece)
                time.sleep(0.02)
            assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
            size = 0
            while (line := stream.readline()) != b"\r\n":
                size = int(line.split()[1]) if line.startswith(b"content-length") else size
            assert len(json.loads(stream.read(size))["outputs"][0]["data"]) == 10
        sock.sendall(head + body + b"nonsense\r\n\r\n")
        assert stream.read().rpartition(b"HTTP/1.1 ")[2].startswith((b"400", b"200"))


def _raw_body(image: Any) -> tuple[dict[str, str], bytes]:
    tensor = {"name": "images", "datatype": "FP32", "shape": [1, *image.shape]}
    text = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": image.nbytes}}]}).encode()
    return {"Inference-Header-Content-Length": str(len(text))}, text + image.tobytes()


def test_connections_are_kept_and_mixed_requests_share_them(server: ServerProcess) -> None:
    connection = http.client.HTTPConnection(server.http, timeout=30)
    for rows in (1, 2, 3):
        connection.request("GET", "/v2/health/ready")
        assert connection.getresponse().read() == b""
        connection.request("POST", INFER, json.dumps(request_body(rows)))
        assert json.loads(connection.getresponse().read())["outputs"][0]["shape"] == [rows, 10]
        connection.request("POST", INFER, b"{")
        assert connection.getresponse().read().startswith(b'{"error"')
    connection.close()


def test_metrics_tell_what_happened(server: ServerProcess) -> None:
    def metric(name: str) -> float:
        text = ask(server, "GET", "/metrics")[2].decode()
        found = [line for line in text.splitlines() if line.startswith(name)]
        return float(found[0].split()[-1]) if found else 0.0

    names = {
        'osa_serve_requests_total{model="encoder",version="1"}': 2,
        'osa_serve_inferences_total{model="encoder",version="1"}': 2,
        'osa_serve_executions_total{model="encoder",version="1"}': 2,
        'osa_serve_nonfinite_outputs_total{model="encoder",version="1"}': 1,
        'osa_serve_failures_total{model="encoder",status="422",version="1"}': 1,
        'osa_serve_latency_seconds_count{model="encoder",version="1"}': 1,
        'osa_serve_batch_rows_bucket{le="1",model="encoder",version="1"}': 2,
    }
    before = {name: metric(name) for name in names}
    for mask in (True, False):
        tensors = [
            {"name": "tokens", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]},
            {"name": "mask", "datatype": "BOOL", "shape": [1, 2], "data": [mask, mask]},
        ]
        ask(server, "POST", "/v2/models/encoder/infer", {"inputs": tensors})
    assert {name: metric(name) - before[name] for name in names} == names
    assert metric('osa_serve_queue{model="encoder",version="1"}') == 0


def test_squarings_are_those_of_the_runs(server: ServerProcess) -> None:
    """Of the latest run and at most, for each layer, as the graph counts them; none from the warm-up."""

    def squarings(name: str) -> dict[str, float]:
        text = ask(server, "GET", "/metrics")[2].decode()
        start = f'osa_serve_squarings{name}{{layer="'
        lines = [line for line in text.splitlines() if line.startswith(start) and 'model="vit",version="3"' in line]
        return {line.removeprefix(start).split('"')[0]: float(line.split()[-1]) for line in lines}

    def run(factor: float) -> None:
        body = request_body(1)
        body["inputs"][0]["data"] = [factor * x for x in body["inputs"][0]["data"]]
        assert ask(server, "POST", INFER, body)[0] == 200

    run(0.01)
    few = squarings("")
    run(100.0)
    many = squarings("")
    run(0.01)
    assert squarings("") == few
    assert all(squarings("_most")[layer] >= count for layer, count in many.items())
    assert sum(many.values()) > sum(few.values())
    assert all(layer.endswith("attention") for layer in few)


def test_ids_beyond_the_vocabulary_are_the_clients_mistake(server: ServerProcess) -> None:
    tensors = [{"name": "tokens", "datatype": "INT64", "shape": [1, 2], "data": [1, 11]}]
    status, _, content = ask(server, "POST", "/v2/models/encoder/infer", {"inputs": tensors})
    assert (status, "tokens" in json.loads(content)["error"]) == (400, True)


def test_binary_answers_carry_their_length(server: ServerProcess) -> None:
    body = request_body(2, outputs=[{"name": "logits", "parameters": {"binary_data": True}}])
    status, headers, content = ask(server, "POST", INFER, body)
    size = int(headers["inference-header-content-length"])
    assert (status, headers["content-type"]) == (200, "application/octet-stream")
    assert json.loads(content[:size])["outputs"][0]["parameters"] == {"binary_data_size": 80}
    assert np.isfinite(np.frombuffer(content[size:], "<f4")).all()
