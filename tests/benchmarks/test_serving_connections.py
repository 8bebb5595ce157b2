"""The clients of the load benchmark: answers in pieces, errors, flow control."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from hpack import Encoder
from serving_load.grpc_connection import GrpcConnection, call_status
from serving_load.http_connection import HttpConnection, join_chunks
from serving_load.load import Recorder

from osa_runtime.serving import http2_frames as h2

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=1\r\nllo\r\n0\r\n\r\n"


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


def connected(kind: type[Any], requests: tuple[bytes, ...] = (b"ask",)) -> tuple[Any, Recorder, Transport]:
    recorder, transport = Recorder(requests, end=float("inf"), open=1, done=asyncio.Event()), Transport()
    connection = kind(recorder, 0)
    connection.connection_made(transport)
    return connection, recorder, transport


@pytest.mark.parametrize("answer", [PLAIN, CHUNKED], ids=["length", "chunks"])
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_http_answers_may_come_in_pieces(answer: bytes, step: int) -> None:
    connection, recorder, transport = connected(HttpConnection)
    for at in range(0, len(answer), step):
        assert not recorder.answers
        connection.data_received(answer[at : at + step])
    assert [each[-1].endswith(b"\r\n\r\nhello") for each in recorder.answers] == [True]
    assert transport.written == [b"ask", b"ask"]


def test_a_zero_inside_a_chunk_does_not_end_the_answer() -> None:
    assert join_chunks(b"7\r\nab0\r\n\r\n") is None
    assert join_chunks(b"7\r\nab0\r\n\r\n\r\n0\r\n\r\n") == b"ab0\r\n\r\n"


def test_answers_without_a_length_are_a_failure() -> None:
    connection, recorder, _ = connected(HttpConnection)
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    assert "without a length" in recorder.failure


@pytest.mark.parametrize("kind", [HttpConnection, GrpcConnection])
def test_a_lost_connection_is_a_failure(kind: type[Any]) -> None:
    connection, recorder, _ = connected(kind)
    connection.connection_lost(None)
    assert "closed the connection" in recorder.failure
    assert recorder.done.is_set()


def trailers(status: str) -> bytes:
    block = Encoder().encode([("grpc-status", status), ("grpc-message", "why")])
    return h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, block)


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_grpc_answers_may_come_in_pieces(step: int) -> None:
    connection, recorder, transport = connected(GrpcConnection)
    message = struct.pack(">BI", 0, 6) + b"answer"
    parts = [h2.frame(h2.DATA, 0, 1, message[:4]), h2.frame(h2.DATA, 0, 1, message[4:]), trailers("0")]
    stream = h2.settings({}) + b"".join(parts)
    for at in range(0, len(stream), step):
        connection.data_received(stream[at : at + step])
    assert [each[-1] for each in recorder.answers] == [b"answer"]
    assert transport.written[-1].endswith(b"ask")


def test_a_failed_call_is_a_failure() -> None:
    connection, recorder, _ = connected(GrpcConnection)
    connection.data_received(trailers("3"))
    assert recorder.failure == "grpc-status 3: why"


def test_a_call_without_a_status_has_failed() -> None:
    assert "missing" in call_status(Encoder().encode([("x", "y")]))


def test_grpc_waits_for_the_window() -> None:
    connection, recorder, transport = connected(GrpcConnection, (b"x" * 16000,))
    for _ in range(4):  # 65535 bytes take four such messages and no fifth
        connection.data_received(trailers("0"))
    assert not transport.written[-1].endswith(b"x")
    connection.data_received(h2.window_update(0, 100_000))
    assert transport.written[-1].endswith(b"x")
    assert len(recorder.answers) == 4


def test_requests_beyond_a_frame_are_refused_and_not_cut() -> None:
    _, recorder, _ = connected(GrpcConnection, (b"x" * 20_000,))
    assert "too large for this client" in recorder.failure


def test_pings_are_answered() -> None:
    connection, _, transport = connected(GrpcConnection)
    connection.data_received(h2.frame(h2.PING, 0, 0, b"12345678"))
    assert transport.written[-1] == h2.frame(h2.PING, h2.ACK, 0, b"12345678")
