"""Values, fields and paths that mean something else than they seem to: refused with a 4xx, or answered rightly."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from canary import Target
from rest_attack import HOST, TENSOR, VALID, connect, head, infer, is_refused, send, status, tensor

MILLION = 1_000_000


def data(text: str, shape: str = "[1,1,8,8]", datatype: str = "FP32") -> bytes:
    """A request whose values are this text."""
    return f'{{"inputs":[{{"name":"images","datatype":"{datatype}","shape":{shape},"data":{text}}}]}}'.encode()


def values(text: str) -> bytes:
    return data("[" + ",".join([text] * 64) + "]")


TEXTS: dict[str, bytes] = {
    "an exponent beyond float64": values("1e999999999"),
    "NaN as a word": values("NaN"),
    "Infinity as a word": values("-Infinity"),
    "true for a number": values("true"),
    "a number in a string": values('"1"'),
    "null": values("null"),
    "hexadecimal": values("0x1"),
    "a leading zero": values("01"),
    "a plus": values("+1"),
    "a bare point": values(".5"),
    "a comment": values("1/*x*/"),
    "a comma at the end": data("[" + "1," * 64 + "]"),
    "an empty place": data("[" + "1," * 32 + "," + "1," * 30 + "1]"),
    "brackets in strings": data('["[' + '","' * 62 + ']"]', "[1,64]"),
    "lists of another depth": data("[[[" + ",".join(["1"] * 64) + "]]]"),
    "an object as values": data('{"0": 1}'),
    "a string as values": data('"' + "1," * 63 + '1"'),
    "two documents": VALID + VALID,
    "something after the document": VALID + b"\x00",
    "UTF-16": VALID.decode().encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + VALID,
    "bytes that are not UTF-8": VALID.replace(b"images", b"im\xff\xfees"),
    "an overlong encoding": VALID.replace(b"images", b"im\xc0\xafes"),
    "a fraction in a shape": data("[1]", "[1.0,1,8,8]"),
    "true in a shape": data("[1]", "[true,1,8,8]"),
    "a string in a shape": data("[1]", '["1",1,8,8]'),
    "a shape of an exponent": data("[1]", "[1e0,1,8,8]"),
    "a datatype that has no tensors": data('["a"]', "[1]", "BYTES"),
    "another datatype": data("[" + "1," * 63 + "1]", datatype="INT64"),
    "half precision": data("[" + "1," * 63 + "1]", datatype="FP16"),
    "a datatype in small letters": data("[1]", datatype="fp32"),
    "a list of requests": b"[" + VALID + b"]",
    "deep parameters": VALID[:-1] + b',"parameters":' + b'{"a":' * 3000 + b"1" + b"}" * 3000 + b"}",
    "a list as parameters": VALID[:-1] + b',"parameters":[1]}',
    "an id that is an object": VALID[:-1] + b',"id":{"a":1}}',
    "an id with half a character": VALID[:-1] + b',"id":"\\ud800"}',
    "a name with half a character": VALID.replace(b"images", b"\\udfff"),
    "inputs as an object": b'{"inputs":{"images":1}}',
    "no inputs": b'{"inputs":[]}',
    "a nonfinite answer allowed by a text": VALID[:-1] + b',"parameters":{"allow_nonfinite":"true"}}',
    "a part of an exponent as timeout": VALID[:-1] + b',"parameters":{"timeout":1e300}}',
}


@pytest.mark.parametrize("case", TEXTS)
def test_texts_that_do_not_mean_the_values_are_refused(target: Target, case: str) -> None:
    answer = infer(target, TEXTS[case])
    assert is_refused(answer), answer[:300]
    json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


@pytest.mark.parametrize("text", ["1e-999999999", "-0", "-0.0", "4.9e-324", "0.1" + "0" * 300])
def test_numbers_that_round_are_answered(target: Target, text: str) -> None:
    assert status(infer(target, values(text))) == 200


def test_of_a_key_that_is_given_twice_the_last_one_counts(target: Target) -> None:
    """Like in Python and JavaScript, the last field of a name counts."""
    twice = VALID.replace(b'"datatype"', b'"shape": [64], "datatype"').replace(b'"data"', b'"data": [], "data"')
    assert b'"id":"b"' in infer(target, twice[:-1] + b',"id":"a","id":"b"}')
    assert is_refused(infer(target, twice[:-1] + b',"id":7,"id":"b"}'))
    assert is_refused(infer(target, VALID[:-1] + b',"inputs":[]}'))


def binary(sizes: list[Any], content: bytes, header: Any = None, names: str = "images") -> tuple[bytes, str]:
    inputs = [
        TENSOR | {"name": name, "parameters": {"binary_data_size": size}}
        for name, size in zip(names.split(), sizes, strict=True)
    ]
    part = json.dumps({"inputs": inputs}).encode()
    return part + content, f"Inference-Header-Content-Length: {len(part) if header is None else header}"


LIES: dict[str, tuple[bytes, str]] = {
    "fewer bytes than the shape": binary([255], bytes(255)),
    "more bytes than the shape": binary([257], bytes(257)),
    "more bytes than there are": binary([256], bytes(255)),
    "fewer bytes than there are": binary([256], bytes(300)),
    "a size of 2^63": binary([2**63], bytes(256)),
    "a negative size": binary([-256], bytes(256)),
    "a size that is true": binary([True], bytes(1)),
    "a size that is a fraction": binary([256.0], bytes(256)),
    "a size that is a text": binary(["256"], bytes(256)),
    "no size": binary([None], bytes(256)),
    "sizes that borrow from each other": binary([512, 0], bytes(512), names="images mask"),
    "a head of no bytes": binary([256], bytes(256), header=0),
    "a head beyond the body": binary([256], bytes(256), header=10**6),
    "a head of a negative length": binary([256], bytes(256), header=-1),
    "a head of Arabic digits": binary([256], bytes(256), header="\u0661\u0662"),
    "a head of 10^30 bytes": binary([256], bytes(256), header=10**30),
    "a head that ends in the middle": binary([256], bytes(256), header=20),
    "an empty head": binary([256], bytes(256), header=""),
}  # fmt: skip


@pytest.mark.parametrize("case", LIES)
def test_lies_about_the_bytes_behind_the_json_are_refused(target: Target, case: str) -> None:
    assert is_refused(infer(target, *LIES[case]))


def raw_deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=-15)
    return packer.compress(content) + packer.flush()


PACKED: dict[str, tuple[str, bytes]] = {
    "a bomb in layers": ("gzip", gzip.compress(gzip.compress(gzip.compress(bytes(50 * MILLION))))),
    "a bomb of deflate": ("deflate", zlib.compress(b" " * 50 * MILLION, 9)),
    "deflate without its head": ("deflate", raw_deflate(VALID)),
    "gzip that is called deflate": ("deflate", gzip.compress(VALID)),
    "deflate that is called gzip": ("gzip", zlib.compress(VALID)),
    "100,000 empty members": ("gzip", gzip.compress(b"") * 4000),
    "a long name in the head": ("gzip", b"\x1f\x8b\x08\x08" + bytes(6) + b"x" * 60_000),
    "a dictionary that nobody has": ("deflate", zlib.compressobj(9, zdict=b"images").compress(VALID) + b"xx"),
    "a wrong checksum": ("gzip", gzip.compress(VALID)[:-8] + bytes(8)),
    "nothing": ("gzip", b""),
    "the encoding of a list": ("identity, gzip", gzip.compress(VALID)),
    "chunked as an encoding": ("chunked", VALID),
}


@pytest.mark.parametrize("case", PACKED)
def test_packing_that_is_not_what_it_says_is_refused(target: Target, case: str) -> None:
    encoding, body = PACKED[case]
    with ThreadPoolExecutor(4) as pool:
        for answer in pool.map(lambda _: infer(target, body, f"Content-Encoding: {encoding}"), range(4)):
            assert is_refused(answer)


TARGETS: dict[str, bytes] = {
    "a path that climbs": b"/v2/models/../../etc/passwd",
    "a path that climbs in code": b"/v2/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd/infer",
    "a null": b"/v2/models/vit-onnx%00/infer",
    "an overlong slash": b"/v2/models/%c0%af/infer",
    "bytes that are not UTF-8": b"/v2/models/%ff%fe/infer",
    "half a code": b"/v2/models/%/infer",
    "new lines": b"/v2/models/a%0d%0aX-Evil:%20b/infer",
    "two slashes": b"//v2//models//vit-onnx//infer",
    "no slash": b"v2",
    "an asterisk": b"*",
    "a version of many digits": b"/v2/models/vit-onnx/versions/" + b"9" * 5000 + b"/infer",
    "a version of Arabic digits": b"/v2/models/vit-onnx/versions/%d9%a1/infer",
    "a version of zero": b"/v2/models/vit-onnx/versions/0/infer",
    "a slash too many": b"/v2/models/vit-onnx/infer/",
    "a model of 10,000 characters": b"/v2/models/" + b"x" * 10_000,
}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("case", TARGETS)
def test_targets_that_name_nothing_here_are_refused(target: Target, case: str, method: str) -> None:
    request = b"%b %b HTTP/1.1\r\n%bConnection: close\r\nContent-Length: %d\r\n\r\n%b"
    answer = send(target, request % (method.encode(), TARGETS[case], HOST.encode(), len(VALID), VALID))
    assert is_refused(answer), answer[:200]
    assert b"X-Evil" not in answer.partition(b"\r\n\r\n")[0]


def test_a_whole_address_is_its_path(target: Target) -> None:
    """Servers must take them; whoever can send one can send any Host, too."""
    request = b"GET http://user:password@evil.example/v2 HTTP/1.1\r\n%bConnection: close\r\n\r\n"
    answer = send(target, request % HOST.encode())
    assert (status(answer), b"evil" in answer) == (200, False)
    assert status(send(target, request % b"Host: evil.example\r\n")) == 403


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"])
@pytest.mark.parametrize("path", ["/v2", "/v2/models/vit-onnx/infer", "/v2/repository/index", "/nothing"])
def test_other_methods_are_refused(target: Target, method: str, path: str) -> None:
    answer = send(target, head(target, path=path, method=method))
    known = method == "HEAD" and path == "/v2"
    assert (status(answer) == 200) if known else is_refused(answer)
    assert method != "HEAD" or answer.endswith(b"\r\n\r\n")


def test_old_http_is_answered_once(target: Target) -> None:
    request = head(target, f"Content-Length: {len(VALID)}", "Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0")
    answer = send(target, request + VALID + b"GET /v2 HTTP/1.0\r\n\r\n")
    assert (answer[9:12], answer.count(b"HTTP/1.")) == (b"200", 1)
    assert b"403" in send(target, b"GET /v2 HTTP/1.0\r\n\r\n")[:20]  # no name, so perhaps a name of someone else


def test_a_client_that_asks_before_it_sends_is_told_to(target: Target) -> None:
    with connect(target) as sock:
        sock.sendall(head(target, f"Content-Length: {len(VALID)}", "Expect: 100-continue"))
        assert sock.recv(4096).startswith(b"HTTP/1.1 100 ")
        sock.sendall(VALID)
        assert status(sock.makefile("rb").read()) == 200


def test_clients_that_stop_talking_after_their_request(target: Target) -> None:
    for _ in range(50):
        with connect(target) as sock:
            sock.sendall(head(target, f"Content-Length: {len(VALID)}") + VALID)
            sock.shutdown(socket.SHUT_WR)
            answer = sock.makefile("rb").read()
            assert answer == b"" or status(answer) == 200


def test_clients_that_reset_their_connections(target: Target) -> None:
    request = head(target, f"Content-Length: {len(VALID)}") + VALID
    for number in range(500):
        sock = connect(target)
        sock.sendall(request[: len(request) - number % 3])
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()


TRAILERS: dict[str, bytes] = {
    "trailers that change the request": b"0\r\nContent-Length: 5\r\nHost: evil.example\r\n\r\n",
    "a size with a sign": b"+5\r\n     \r\n0\r\n\r\n",
    "a size with a prefix": b"0x5\r\n     \r\n0\r\n\r\n",
    "a size with a space": b"5 \r\n     \r\n0\r\n\r\n",
    "a chunk that is longer than its size": b"5\r\n        \r\n0\r\n\r\n",
    "an extension with a line feed": b'5;a="\n"\r\n     \r\n0\r\n\r\n',
}


@pytest.mark.parametrize("case", TRAILERS)
def test_chunks_that_mean_two_things(target: Target, case: str) -> None:
    smuggled = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    answer = send(target, head(target, "Transfer-Encoding: chunked") + TRAILERS[case] + smuggled)
    assert is_refused(answer)


def test_control_calls_in_a_flood(target: Target) -> None:
    """Everything that is not inference, from eight clients without a pause."""
    calls = [
        ("GET", "/metrics", b"", 200), ("GET", "/details", b"", 200), ("GET", "/openapi.json", b"", 200),
        ("GET", "/", b"", 200), ("GET", "/v2/models/stats", b"", 200), ("POST", "/v2/repository/index", b"", 200),
        ("POST", "/v2/repository/index", b'{"ready": 1}', 400), ("POST", "/v2/repository/index", b"[]", 400),
        ("POST", f"/v2/repository/models/{target.model}/load", b"", 200),
        ("POST", f"/v2/repository/models/{target.model}/load", b'{"parameters": {"config": "{}"}}', 400),
        ("POST", "/v2/repository/models/..%2f..%2fetc/load", b"", 404),
        ("POST", "/v2/repository/models/nothing/unload", b'{"parameters": {"a": [1]}}', 400),
        ("GET", "/v2/trace/setting", b"", 501), ("POST", "/v2/logging", b'{"log_file_1": "/etc/passwd"}', 501),
        ("POST", "/v2/systemsharedmemory/region/x/register", b"{}", 501),
    ]  # fmt: skip
    end = time.monotonic() + 2

    def flood(number: int) -> None:
        with contextlib.closing(http.client.HTTPConnection(target.server.http, timeout=30)) as connection:
            while time.monotonic() < end:
                number += 1
                method, path, body, expected = calls[number % len(calls)]
                connection.request(method, path, body)
                answer = connection.getresponse()
                assert (path, answer.status, answer.read()[:0]) == (path, expected, b"")

    with ThreadPoolExecutor(8) as pool:
        for client in [pool.submit(flood, number) for number in range(8)]:
            client.result(30)


@pytest.mark.parametrize(("senders", "sent"), [(40, 1), (6, 100_000)])
def test_slow_senders_of_large_bodies_do_not_hold_up_a_fast_one(large: Target, senders: int, sent: int) -> None:
    size = 60 << 20
    path = "/v2/models/large/infer"
    with contextlib.ExitStack() as stack:
        for _ in range(senders):
            sock = stack.enter_context(connect(large))
            sock.sendall(head(large, f"Content-Length: {size}", path=path) + b" " * sent)
        began = time.monotonic()
        fast = json.dumps(tensor(shape=[2000, 1, 8, 8], data=[0.5] * 128_000)).encode()
        answer = send(large, head(large, f"Content-Length: {len(fast)}", path=path) + fast)
        assert status(answer) == 200
        assert time.monotonic() - began < 8  # --timeout, which the slow ones have, is 30
