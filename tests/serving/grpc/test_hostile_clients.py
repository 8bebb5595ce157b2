"""Hostile clients over gRPC: each is refused with its code or cut off, and nobody else feels it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gzip
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived
from hpack import Encoder
from hyperframe import frame as frames
from tritonclient.grpc import service_pb2 as pb

from canary import Target
from protobuf_fields import field

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
BAD, TOO_MUCH = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", INFER),
    (":authority", "127.0.0.1"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
IMAGE = np.zeros((1, 1, 8, 8), np.float32)


@pytest.fixture(scope="module")
def running(exported: Callable[[str, str], Path]) -> Iterator[Target]:
    with Target(exported("vit", "onnx"), "--timeout", "5") as target:
        yield target


@pytest.fixture
def target(running: Target) -> Iterator[Target]:
    with running.watched():
        yield running
        with channel(running) as opened:  # gRPC itself serves on
            answer = opened.unary_unary(INFER)(valid(running), timeout=5)
        assert len(pb.ModelInferResponse.FromString(answer).raw_output_contents[0]) == 40


@contextlib.contextmanager
def channel(target: Target) -> Iterator[Any]:
    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_metadata_size", 1 << 20),
    ]
    with grpc.insecure_channel(target.server.grpc, options) as opened:
        yield opened


def valid(target: Target, **fields: Any) -> bytes:
    message = pb.ModelInferRequest(model_name=target.model, raw_input_contents=[IMAGE.tobytes()], **fields)
    message.inputs.add(name="images", datatype="FP32", shape=IMAGE.shape)
    return message.SerializeToString()


def tensor(**fields: Any) -> bytes:
    """A request with one input."""
    shape = {"name": "images", "datatype": "FP32", "shape": [1, 1, 8, 8]}
    return pb.ModelInferRequest(model_name="vit-onnx", inputs=[shape | fields]).SerializeToString()


def raw(shape: list[int], content: bytes, datatype: str = "FP32") -> bytes:
    return tensor(shape=shape, datatype=datatype) + field(7, content)


def contents(number: int, values: bytes) -> bytes:
    """Typed values for an input of 64."""
    head = pb.ModelInferRequest.InferInputTensor(name="images", datatype="FP32", shape=[1, 1, 8, 8])
    return field(1, b"vit-onnx") + field(5, head.SerializeToString() + field(5, field(number, values)))


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
    "zero beside huge axes": lambda: raw([0, 2**62, 2**62, 2**62], b""),
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
    stop = time.monotonic() + 3

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


# Below any client


@contextlib.contextmanager
def peer(target: Target, greet: bool = True) -> Iterator[socket.socket]:
    host, _, port = target.server.grpc.partition(":")
    with socket.create_connection((host, int(port)), 30) as sock:
        if greet:
            sock.sendall(GREETING)
        yield sock


def call(stream: int, message: bytes, end: bool = True) -> bytes:
    head = frames.HeadersFrame(stream, Encoder().encode(HEADERS, huffman=False), flags=["END_HEADERS"])
    content = struct.pack(">BI", 0, len(message)) + message
    return head.serialize() + frames.DataFrame(stream, content, flags=["END_STREAM"] if end else []).serialize()


def said(sock: socket.socket, seconds: float = 10) -> bytes:
    """What the server says until it closes or is silent for so long."""
    sock.settimeout(seconds)
    reply = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        while part := sock.recv(65536):
            reply += part
    return reply


def push(sock: socket.socket, *parts: bytes) -> None:
    """Send all of it, if the server still listens; it may close at any time."""
    with contextlib.suppress(ConnectionError):
        for part in parts:
            sock.sendall(part)


def frame(kind: int, flags: int, stream: int, content: bytes, size: int | None = None) -> bytes:
    """Any frame, also one that hyperframe would not write."""
    return (
        (len(content) if size is None else size).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + content
    )


GREETING = PREFACE + frames.SettingsFrame(0).serialize()
ENDINGS: dict[str, bytes] = {
    "REST on the port of gRPC": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "noise": os.urandom(100_000),
    "a wrong preface": b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n" + b"\0" * 100,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 600,
    "a large frame": GREETING + frame(0, 0, 1, b"x" * 100_000, size=0xFFFFFF),
    "malformed settings": PREFACE + frame(4, 0, 0, b"123"),
    "a malformed header block": GREETING + frame(1, 4, 1, b"\xff" * 50),
    "a header block that is interrupted": GREETING + frame(1, 0, 1, b"\x88") + frame(6, 0, 0, b"12345678"),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_peers_that_break_the_protocol_are_cut_off(target: Target, case: str) -> None:
    with peer(target, greet=False) as sock:
        push(sock, ENDINGS[case])
        begin = time.monotonic()
        said(sock, 15)
        assert time.monotonic() - begin < 14


def test_peers_that_break_the_protocol_and_are_ignored(target: Target) -> None:
    with peer(target) as sock:
        push(sock, frame(0, 0, 0, b"x"))  # data on no stream
        push(sock, frame(5, 4, 1, b"\0" * 20))  # a push
        push(sock, frame(8, 0, 0, b"\x7f\xff\xff\xff") * 3)  # a window beyond all
        push(sock, frame(1, 4, 2, Encoder().encode(HEADERS)))  # an even stream
        said(sock, 1)


def test_half_prefaces(target: Target) -> None:
    """Whoever does not greet within 10 s is left; meanwhile there are places."""
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(peer(target, greet=False)) for _ in range(200)]
        for number, sock in enumerate(socks):
            push(sock, PREFACE[: number % len(PREFACE)])
        begin = time.monotonic()
        said(socks[5], 20)
        assert time.monotonic() - begin < 15


FLOODS: dict[str, Callable[[int], bytes]] = {
    "settings": lambda _: frames.SettingsFrame(0, {3: 100, 4: 65535}).serialize(),
    "pings": lambda _: frames.PingFrame(0, b"12345678").serialize(),
    "priorities": lambda n: frames.PriorityFrame(2 * n + 1, depends_on=0, stream_weight=1).serialize(),
    "window updates": lambda _: frames.WindowUpdateFrame(0, window_increment=1).serialize(),
    "unknown frames": lambda _: struct.pack(">BHBBI", 0, 8, 77, 0, 0) + b"\0" * 8,
    "resets": lambda n: call(2 * n + 1, b"", end=False) + frames.RstStreamFrame(2 * n + 1, error_code=8).serialize(),
    "calls without a message": lambda n: frames.HeadersFrame(
        2 * n + 1, Encoder().encode(HEADERS, huffman=False), flags=["END_HEADERS", "END_STREAM"]
    ).serialize(),
    "calls to nobody": lambda n: frames.HeadersFrame(
        2 * n + 1,
        Encoder().encode([(k, "/" + "x" * 3000 if k == ":path" else v) for k, v in HEADERS], huffman=False),
        flags=["END_HEADERS", "END_STREAM"],
    ).serialize(),
    "empty data": lambda n: frames.DataFrame(1, b"").serialize() if n else call(1, b"", end=False),
    "continuations": lambda n: (
        frames.ContinuationFrame(1, b"\0" * 1000).serialize()
        if n
        else frames.HeadersFrame(1, Encoder().encode(HEADERS)).serialize()
    ),
}


@pytest.mark.parametrize("case", FLOODS)
def test_floods(target: Target, case: str) -> None:
    flood = b"".join(map(FLOODS[case], range(20_000)))
    with peer(target) as sock, peer(target) as other:
        reader = threading.Thread(target=said, args=(sock, 3))
        reader.start()
        for at in range(0, len(flood), 1 << 16):
            push(sock, flood[at : at + (1 << 16)])
        push(other, flood)  # nobody reads what the server says to this one
        reader.join()


def test_a_table_of_headers_that_multiplies(target: Target) -> None:
    """One large header in the table, named thousands of times in one byte each."""
    encoder = Encoder()
    first = encoder.encode([*HEADERS, ("x", "y" * 4000)], huffman=False)
    entry = encoder.encode([("x", "y" * 4000)], huffman=False)
    assert len(entry) == 1
    with peer(target) as sock:
        push(sock, frames.HeadersFrame(1, first, flags=["END_HEADERS", "END_STREAM"]).serialize())
        for number in range(3, 400, 2):
            push(sock, frames.HeadersFrame(number, first[:1] + entry * 16_000, flags=["END_HEADERS"]).serialize())
        said(sock, 1)


def test_windows_that_stay_shut(target: Target) -> None:
    """Answers that the peer has no room for: they are few and small, and give their places up."""
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            sock = stack.enter_context(peer(target, greet=False))
            push(sock, PREFACE + frames.SettingsFrame(0, {4: 0}).serialize())
            push(sock, *(call(number, valid(target)) for number in range(1, 201, 2)))
        time.sleep(2)
        with channel(target) as opened:
            assert opened.unary_unary(INFER)(valid(target), timeout=10)


def test_a_message_that_is_announced_and_never_comes(target: Target) -> None:
    with contextlib.ExitStack() as stack:
        for size in (2**32 - 1, 60_000_000, 1000) * 20:
            sock = stack.enter_context(peer(target))
            push(sock, call(1, b"", end=False)[:-5] + struct.pack(">BI", 0, size) + b"\0" * 100)
        time.sleep(1)


def test_a_thousand_connections(target: Target) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(1000):
            with contextlib.suppress(ConnectionError):
                stack.enter_context(peer(target, greet=number % 2 == 0))
        time.sleep(1)


def test_calls_in_any_pieces(target: Target) -> None:
    """Not hostile at all: a valid call byte by byte is answered."""
    connection = H2Connection(H2Configuration(header_encoding="utf-8"))
    connection.initiate_connection()
    connection.send_headers(1, HEADERS)
    message = valid(target)
    connection.send_data(1, struct.pack(">BI", 0, len(message)) + message, end_stream=True)
    answer = b""
    with peer(target, greet=False) as sock:
        sock.settimeout(10)
        for byte in connection.data_to_send():
            sock.sendall(bytes([byte]))
        while not answer:
            events = connection.receive_data(sock.recv(65536))
            assert not any(isinstance(event, ConnectionTerminated) for event in events)
            answer = b"".join(event.data for event in events if isinstance(event, DataReceived))
    assert pb.ModelInferResponse.FromString(answer[5:]).model_name == target.model
