"""Dialects of HTTP and JSON that servers and proxies read differently: refused, or answered as the standard says."""

from __future__ import annotations

import gzip
import json
import re
import time

import pytest

from canary import Target
from rest_attack import VALID, connect, head, is_refused, send, status


def request(body: bytes, *headers: str, path: str = "/v2/models/vit-onnx/infer", length: bool = True) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "Connection: close"]
    lines += [f"Content-Length: {len(body)}"] if length else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chunked(*headers: str, size: bytes = b"%x" % len(VALID), end: bytes = b"\r\n") -> bytes:
    content = size + end + VALID + end + b"0" + end + end
    return request(content, *(headers or ("Transfer-Encoding: chunked",)), length=False)


def with_field(text: str) -> bytes:
    """A valid request with one more field."""
    return request(VALID[:-1] + b"," + text.encode() + b"}")


def replaced(old: str, new: bytes) -> bytes:
    assert old.encode() in VALID
    return request(VALID.replace(old.encode(), new))


def classified(count: str) -> bytes:
    return with_field(f'"outputs": [{{"name": "logits", "parameters": {{"classification": {count}}}}}]')


def control(body: bytes, call: str = "index") -> bytes:
    return request(body, path=f"/v2/repository/{call}")


REFUSED: dict[str, bytes] = {
    "packed and in chunks, in two headers": chunked("Transfer-Encoding: gzip", "Transfer-Encoding: chunked"),
    "identity and chunks": chunked("Transfer-Encoding: identity", "Transfer-Encoding: chunked"),
    "chunks and identity": chunked("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
    "chunks twice": chunked("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
    "chunks with a parameter": chunked("Transfer-Encoding: chunked;q=1"),
    "chunks behind a vertical tab": chunked("Transfer-Encoding: \x0bchunked"),
    "chunks and a comma": chunked("Transfer-Encoding: chunked,"),
    "chunks in HTTP/1.0": chunked().replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a size below zero": chunked(size=b"-1"),
    "chunks that end in line feeds": chunked(end=b"\n"),
    "chunks without an end of line": chunked().replace(VALID + b"\r\n", VALID),
    "an encoding like chunked next to a length": request(VALID, "Transfer-Encoding: xchunked"),
    "a folded host": b"GET /v2 HTTP/1.1\r\nHost:\r\n 127.0.0.1\r\nConnection: close\r\n\r\n",
    "any folded header": request(VALID, "X-A: b\r\n c"),
    "a hexadecimal length": request(VALID, "Content-Length: 0x10", length=False),
    "a length with a space": request(VALID, "Content-Length: 1 0", length=False),
    "a length as Python writes it": request(VALID, "Content-Length: 1_0", length=False),
    "a length of no digits": request(VALID, "Content-Length: ", length=False),
    "no length": request(VALID, length=False),
    "a header's name beyond ASCII": request(VALID, "X-\xe9: 1"),
    "a header without a name": request(VALID, ": x"),
    "two lengths of the JSON part": request(VALID, *["Inference-Header-Content-Length: 5"] * 2),
    "a signed length of the JSON part": request(VALID, f"Inference-Header-Content-Length: +{len(VALID)}"),
    "two content encodings": request(gzip.compress(VALID), "Content-Encoding: gzip", "Content-Encoding: identity"),
    "lines that end in line feeds": request(VALID).replace(b"\r\n", b"\n"),
    "lines that end in carriage returns": request(VALID).replace(b"\r\n", b"\r"),
    "HTTP/0.9": b"GET /v2\r\n\r\n",
    "40,000 empty lines": b"\r\n" * 40_000 + request(VALID),
    "a space in the path": request(VALID, path="/v2/models/vit-onnx x/infer"),
    "UTF-8 in the path": request(VALID, path="/v2/models/\xc3\xa9/infer"),
    "a comment": request(b"// x\n" + VALID),
    "a key without quotes": replaced('"inputs"', b"inputs"),
    "single quotes": request(VALID.replace(b'"', b"'")),
    "a comma before the end": request(VALID[:-1] + b",}"),
    "a null byte between values": replaced("[0.5", b"[\x000.5"),
    "a vertical tab between values": replaced("[0.5", b"[\x0b0.5"),
    "a space of another kind": replaced("[0.5", b"[\xc2\xa00.5"),
    "an exponent of no digits": replaced("0.5", b"5e"),
    "a parameter beyond float64": with_field('"parameters": {"x": 1e400}'),
    "a parameter that is NaN": with_field('"parameters": {"x": NaN}'),
    "a parameter of 5,000 digits": with_field(f'"parameters": {{"x": {"9" * 5000}}}'),
    "surrogates in the wrong order": with_field('"id": "\\ude00\\ud83d"'),
    "an id of 1,025 characters": with_field(f'"id": "{"x" * 1025}"'),
    "a fraction of a class": classified("2.0"),
    "a class that is true": classified("true"),
    "a name that is null": replaced('"images"', b"null"),
    "no name at all": replaced('"name": "images"', b'"nom": "images"'),
    "an empty name": replaced('"images"', b'""'),
    "null in a shape": replaced("[1, 1, 8, 8]", b"[null, 1, 8, 8]"),
    "a list in a shape": replaced("[1, 1, 8, 8]", b"[[1], 1, 8, 8]"),
    "a shape that is an object": replaced("[1, 1, 8, 8]", b'{"0": 1}'),
    "a shape of no axes": replaced("[1, 1, 8, 8]", b"[]"),
    "minus zero as an axis": replaced("[1, 1, 8, 8]", b"[1, 1, 8, -0]"),
    "an axis of 2^63": replaced("[1, 1, 8, 8]", b"[9223372036854775808, 1, 8, 8]"),
    "an axis of 2^64 + 1": replaced("[1, 1, 8, 8]", b"[18446744073709551617, 1, 8, 8]"),
    "a control call of 70,000 bytes": control(b" " * 70_000),
    "a control call with NaN": control(b'{"ready": NaN}'),
    "a control call whose last word is wrong": control(b'{"ready": true, "ready": 1}'),
    "a deep control call": control(b'{"a":' * 5000 + b"1" + b"}" * 5000),
    "a control call in UTF-16": control('{"ready": true}'.encode("utf-16")),
    "a load with a parameter of no name": control(b'{"parameters": {"\\u0000": 1}}', "models/vit-onnx/load"),
    "an unload with 5,000 digits": control(b'{"parameters": {"a": ' + b"9" * 5000 + b"}}", "models/x/unload"),
    "a load of no name": control(b"", "models//load"),
    "a load of the folder above": control(b"", "models/../load"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_others_may_read_otherwise_is_refused(target: Target, case: str) -> None:
    answer = send(target, REFUSED[case])
    assert is_refused(answer), answer[:300]


TAKEN: dict[str, bytes] = {
    "chunks in capitals": chunked("Transfer-Encoding: CHUNKED"),
    "chunks behind a tab": chunked("Transfer-Encoding:\tchunked"),
    "a chunk's size with zeros": chunked(size=b"0" * 1000 + b"%x" % len(VALID)),
    "a length with zeros": request(VALID, f"Content-Length: 000000{len(VALID)}", length=False),
    "a header's value beyond ASCII": request(VALID, "X-A: \xff\xfe"),
    "an encoding in capitals": request(gzip.compress(VALID), "Content-Encoding: GZIP"),
    "an empty encoding": request(VALID, "Content-Encoding: "),
    "encodings of any quality": request(VALID, "Accept-Encoding: br;q=abc, zstd;q=99, *;q=-1"),
    "another expectation": request(VALID, "Expect: 200-ok"),
    "empty lines before": b"\r\n\r\n\r\n" + request(VALID),
    "a query": request(VALID, path="/v2/models/vit-onnx/infer?a=b"),
    "escapes in a key": replaced('"inputs"', b'"\\u0069nputs"'),
    "escapes in the key of the values": replaced('"data"', b'"dat\\u0061"'),
    "escapes in a name": replaced('"images"', b'"\\u0069mages"'),
    "escapes in a datatype": replaced('"FP32"', b'"FP\\u0033\\u0032"'),
    "an id of two surrogates": with_field('"id": "\\ud83d\\ude00"'),
    "an id of 1,024 snakes": with_field(f'"id": "{"🐍" * 1024}"'),
    "an id like a header": with_field('"id": "\\u0000\\r\\nX-Evil: 1"'),
    "an unknown field beyond float64": with_field('"x": 1e400'),
    "a number with a plus": replaced("0.5", b"5E-1"),
    "a number of 3,000 digits": replaced("0.5", b"0.5" + b"0" * 3000),
    "no outputs": with_field('"outputs": []'),
    "fields of an output that mean nothing": with_field('"outputs": [{"name": "logits", "data": [1], "shape": "x"}]'),
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_the_standards_allow_is_answered(target: Target, case: str) -> None:
    expected, found = (send(target, raw).partition(b"\r\n\r\n") for raw in (request(VALID), TAKEN[case]))
    assert status(found[0]) == 200, found
    assert b"X-Evil" not in found[0]
    known, answered = (json.loads(body)["outputs"][0] for _, _, body in (expected, found))
    # The canary's requests may share a batch with either, and each size of batch rounds in its own way.
    assert answered | {"data": None} == known | {"data": None}
    assert answered["data"] == pytest.approx(known["data"], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("count", ["11", "1000000000000000000", "1" + "0" * 30])
def test_more_classes_than_there_are(target: Target, count: str) -> None:
    answer = send(target, classified(count))
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["outputs"][0]["shape"] == [1, 10]


def test_an_offer_behind_other_requests_hides_no_request(target: Target) -> None:
    first = b"GET /v2 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    hidden = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    offer = head(target, "Upgrade: h2c", f"Content-Length: {len(hidden)}").replace(b": close", b": Upgrade, close")
    for pieces in ([first + offer + hidden], [first + offer, hidden], [first, offer + hidden], [first * 3 + offer]):
        with connect(target) as sock:
            for piece in pieces:
                sock.sendall(piece)
                time.sleep(0.05)
            answer = sock.makefile("rb").read()
        found = [int(code) for code in re.findall(rb"HTTP/1.1 (\d+) ", answer)]
        assert found == [200] * b"".join(pieces).count(first) + [400]


def test_names_and_parameters_of_large_requests_are_bounded(large: Target) -> None:
    values = b'"inputs":[{"name":"images","datatype":"FP32","shape":[2000,1,8,8],"data":[%b0]}]' % (b"0," * 127_999)
    for more in (b'"x":[%b0]' % (b"0," * 10**6), b'"parameters":{%b"a":0}' % (b'"b":0,' * 20_000), b'"x":0'):
        body = b"{" + more + b"," + values + b"}"
        answer = send(large, request(body, path="/v2/models/large/infer"))
        assert status(answer) == (200 if len(more) < 1000 else 413), answer[:300]
