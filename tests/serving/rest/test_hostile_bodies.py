"""Hostile bodies over REST: each is refused with a 4xx, and nobody else feels it."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import signal
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from canary import Target
from rest_attack import (
    TENSOR,
    VALID,
    infer,
    is_refused,
    status,
    tensor,
)


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
    "parameters": lambda: VALID[:-1] + b',"parameters":{%b}}' % b",".join(b'"%d":0' % i for i in range(MILLION)),
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
    packed = gzip.compress(BODIES[case](), 1)
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
    "many axes next to an empty one": tensor(shape=[0, *[2000] * 15], data=[]),
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


@pytest.mark.parametrize("kind", ["json", "binary"])
def test_a_flood_of_bad_values_slows_nobody(target: Target, kind: str) -> None:
    """NaN, Inf, values that overflow, and good ones next to them; all at once."""
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
