"""Hostile peers below any gRPC client: each is cut off, and nobody else feels it."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Callable

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived
from hpack import Encoder
from hyperframe import frame as frames
from tritonclient.grpc import service_pb2 as pb

from canary import Target
from grpc_attack import (
    GREETING,
    HEADERS,
    INFER,
    PREFACE,
    call,
    channel,
    frame,
    peer,
    push,
    said,
    valid,
)

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
    """A connection without a greeting is closed after 10 s; meanwhile others are served."""
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
    """Answers that the peer has no room for: they are few and small, and give their places up.

    The calls are valid, so others queue behind them: there are few enough for that to stay short.
    """
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            sock = stack.enter_context(peer(target, greet=False))
            push(sock, PREFACE + frames.SettingsFrame(0, {4: 0}).serialize())
            push(sock, *(call(number, valid(target)) for number in range(1, 21, 2)))
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
