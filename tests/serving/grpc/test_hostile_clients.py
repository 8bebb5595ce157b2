"""Hostile clients over gRPC: each is refused with its code or cut off, and nobody else feels it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gzip
import threading
import time
from collections.abc import Callable

import grpc
import numpy as np
import pytest

from canary import Target
from grpc_attack import (
    BAD,
    INFER,
    STREAM,
    TOO_MUCH,
    call,
    channel,
    contents,
    peer,
    raw,
    tensor,
    valid,
)
from protobuf_fields import field

MESSAGES: dict[str, Callable[[], bytes]] = {
    "an output named 400,000 times": lambda: tensor() + field(6, field(1, b"logits")) * 400_000,
    "50 million typed values": lambda: contents(1, b"\1" * 50_000_000),
    "8 million typed integers": lambda: contents(3, b"\1" * 8_000_000),
    "2 million floats": lambda: contents(6, b"\0" * 8_000_000),
    "values one by one": lambda: field(1, b"vit-onnx") + field(5, field(5, (b"\x35" + b"\0" * 4) * 10**6)),
    "an input name of 20 MB": lambda: tensor(name="x" * 20_000_000),
    "an input name of 60 KB": lambda: tensor(name="x" * 60_000),
    "a model name of 20 MB": lambda: field(1, b"x" * 20_000_000),
    "an id of 60 KB": lambda: tensor() + field(3, b"x" * 60_000),
    "a million parameters": lambda: tensor() + b"".join(field(4, b"\x0a\4%04x" % n) for n in range(10**6)),
    "a parameter of 50 MB": lambda: tensor() + field(4, field(2, field(3, b"x" * 50_000_000))),
    "a million inputs": lambda: field(1, b"vit-onnx") + field(5, b"") * 10**6,
    "30,000 inputs": lambda: field(1, b"vit-onnx") + field(5, b"") * 30_000,
    "30 million empty tensors": lambda: tensor() + field(7, b"") * 30_000_000,
    "a raw tensor of 60 MB": lambda: raw([1, 1, 8, 8], b"\0" * 60_000_000),
    "a raw tensor of 60 MB and its shape": lambda: raw([15_000_000], b"\0" * 60_000_000),
    "a message of 100 MB": lambda: b"\0" * 100_000_000,
    "zero next to huge axes": lambda: raw([0, 2**62, 2**62, 2**62], b""),
    "an axis of 2^62": lambda: raw([2**62, 1, 8, 8], b"\0" * 256),
    "axes whose product is 64 again": lambda: raw([2**32, 2**32, 8, 8], b"\0" * 256),
    "a negative axis": lambda: raw([-1, 1, 8, 8], b"\0" * 256),
    "10,000 axes": lambda: raw([1] * 10_000, b"\0" * 4),
    "a datatype of 60 KB": lambda: raw([1, 1, 8, 8], b"\0" * 256, "F" * 60_000),
    "a name that is not UTF-8": lambda: field(1, b"\xff\xfe"),
    "noise": lambda: np.random.default_rng(1).bytes(60_000),
    "large noise": lambda: b"\x0a" + np.random.default_rng(1).bytes(30_000_000),
    "groups": lambda: b"\x0b" * 40_000_000,
    "a message cut short": lambda: raw([1, 1, 8, 8], b"\0" * 256)[:-1],
    "an output that does not exist": lambda: raw([1, 1, 8, 8], b"\0" * 256) + field(6, field(1, b"x" * 60_000)),
    "NaN": lambda: raw([1, 1, 8, 8], np.full(64, np.nan, np.float32).tobytes()),
}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("case", MESSAGES)
def test_messages(target: Target, case: str, packed: bool) -> None:
    content = MESSAGES[case]()
    with channel(target) as opened, pytest.raises(grpc.RpcError) as raised:
        opened.unary_unary(INFER)(content, timeout=30, compression=grpc.Compression.Gzip if packed else None)
    assert raised.value.code() in (BAD, TOO_MUCH), raised.value.details()
    assert len(raised.value.details()) <= 1000


@pytest.mark.parametrize("count", [1, 32], ids=["one", "many"])
def test_bombs(target: Target, count: int) -> None:
    """Some 60 KB of gzip that unpack to 60 MB of a valid message."""
    content = gzip.compress(raw([1, 1, 8, 8], b"\0" * 60_000_000), 9)
    assert len(content) < 64 << 10
    with channel(target) as opened:
        calls = [opened.unary_unary(INFER).future(content, timeout=30) for _ in range(count)]
        codes = {call.exception() and call.code() for call in calls}
    assert codes <= {BAD, TOO_MUCH, grpc.StatusCode.UNAVAILABLE}
    assert codes & {BAD, TOO_MUCH}


def test_many_large_messages_at_once(target: Target) -> None:
    content = raw([1, 1, 8, 8], b"\0" * 30_000_000)
    with contextlib.ExitStack() as stack:
        calls = [stack.enter_context(channel(target)).unary_unary(INFER).future(content, timeout=60) for _ in range(12)]
        assert {call.exception() and call.code() for call in calls} <= {TOO_MUCH, BAD, grpc.StatusCode.UNAVAILABLE}


def test_control_messages_and_names(target: Target) -> None:
    with channel(target) as opened:
        for name in ("ModelReady", "ModelMetadata", "RepositoryModelLoad", "RepositoryIndex", "ServerLive"):
            for content in (
                b"\xff" * 1000,
                field(1, b"x" * 10_000_000),
                field(1, b"x" * 60_000) * 1,
                gzip.compress(b""),
            ):
                asked = opened.unary_unary(f"/inference.GRPCInferenceService/{name}").future(content, timeout=10)
                assert (asked.exception() and asked.code()) in (None, BAD, TOO_MUCH, grpc.StatusCode.NOT_FOUND)
        for method in ("/", "/" + "x" * 30_000, "/inference.GRPCInferenceService/", INFER + "/x", INFER.lower()):
            with pytest.raises(grpc.RpcError) as raised:
                opened.unary_unary(method)(b"", timeout=10)
            assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_reflection_of_nonsense(target: Target) -> None:
    with channel(target) as opened:
        ask = opened.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        for content in (b"", field(3, b"x" * 60_000), field(4, b"x"), field(5, field(1, b"x")), field(7, b"")):
            assert len(list(ask(iter([content] * 20), timeout=10))) == 20
        for content in (b"\xff", field(4, b"\xff")):
            with pytest.raises(grpc.RpcError) as raised:
                list(ask(iter([content]), timeout=10))
            assert raised.value.code() == BAD


def test_metadata(target: Target) -> None:
    with channel(target) as opened:
        for metadata, code in (
            ([("k", "v" * 100_000)], TOO_MUCH),
            ([(f"k{n}", "v") for n in range(1000)], BAD),
            ([("k-bin", b"\xff" * 1000)] * 5, None),
            ([("grpc-timeout-not", "x"), ("authorization", "Bearer " + "x" * 5000)], None),
        ):
            call = opened.unary_unary(INFER).future(valid(target), metadata=metadata, timeout=10)
            assert (call.exception() and call.code()) == code


def test_calls_that_are_cancelled_at_once(target: Target) -> None:
    with channel(target) as opened:
        for _ in range(3000):
            opened.unary_unary(INFER).future(valid(target)).cancel()


def test_deadlines_that_are_over(target: Target) -> None:
    with channel(target) as opened:
        calls = [opened.unary_unary(INFER).future(valid(target), timeout=0.0005) for _ in range(1000)]
        codes = {call.exception() and (call.code(), call.details()) for call in calls}
    assert {code and code[0] for code in codes} <= {
        None,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNAVAILABLE,
    }, codes


def test_streams_that_never_end(target: Target) -> None:
    """Valid requests without a pause and without an end, and answers that are all read."""
    stop = time.monotonic() + 1.5

    def ask() -> int:
        with channel(target) as opened:
            messages = iter(lambda: valid(target) if time.monotonic() < stop else None, None)
            return len(list(opened.stream_stream(STREAM)(messages, timeout=30)))

    with concurrent.futures.ThreadPoolExecutor() as pool:
        assert min(pool.map(lambda _: ask(), range(3))) > 50


def test_streams_that_nobody_reads(target: Target) -> None:
    """Requests go on until the windows are full; the answers stay where they are."""
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        stack.callback(stop.set)
        for _ in range(8):
            opened = stack.enter_context(channel(target))
            messages = iter(lambda: valid(target, id="x" * 1000) if not stop.is_set() else None, None)
            stack.callback(opened.stream_stream(STREAM)(messages).cancel)
        time.sleep(3)


def test_streams_that_say_nothing(target: Target) -> None:
    never = threading.Event()
    with contextlib.ExitStack() as stack:
        stack.callback(never.set)
        opened = [stack.enter_context(channel(target)) for _ in range(8)]
        for number in range(400):
            nothing = iter(lambda: never.wait(60) and None, None)
            stack.callback(opened[number % 8].stream_stream(STREAM)(nothing).cancel)
        time.sleep(1)
        answer = opened[0].unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10)
        assert answer == b"\x08\x01"


def test_requests_that_come_byte_by_byte(target: Target) -> None:
    """One that needs longer than --timeout loses its place."""
    with peer(target) as sock:
        sock.sendall(call(1, valid(target))[:-1])
        begin = time.monotonic()
        reply = b""
        while b"grpc-status" not in reply and time.monotonic() - begin < 20:
            reply += sock.recv(65536)
        assert 4 < time.monotonic() - begin < 8
