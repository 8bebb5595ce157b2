"""The clients of the load benchmark: answers in pieces, errors, flow control."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived
from serving_load.client import GrpcConnection, HttpConnection, Recorder
from serving_load.messages import HttpAnswer

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
BINARY = PLAIN.replace(b"\r\n\r\n", b"\r\nInference-Header-Content-Length: 3\r\n\r\n")
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
    assert [each[-1] for each in recorder.answers] == [HttpAnswer(200, b"hello", None)]
    assert transport.written == [b"ask", b"ask"]


def test_http_answers_follow_each_other_on_one_connection() -> None:
    connection, recorder, _ = connected(HttpConnection)
    connection.data_received(BINARY)
    connection.data_received(b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno")
    assert [each[-1] for each in recorder.answers] == [HttpAnswer(200, b"hello", 3), HttpAnswer(503, b"no", None)]


@pytest.mark.parametrize("kind", [HttpConnection, GrpcConnection])
def test_a_lost_connection_is_a_failure(kind: type[Any]) -> None:
    connection, recorder, _ = connected(kind)
    connection.connection_lost(None)
    assert "closed the connection" in recorder.failure
    assert recorder.done.is_set()


class Peer:
    """A server's side of the connection: it reads what the client has written, and says what it is told to."""

    def __init__(self, connection: Any, transport: Transport) -> None:
        self._connection, self._transport, self._read = connection, transport, 0
        self._h2 = H2Connection(H2Configuration(client_side=False))
        self._h2.initiate_connection()
        self.received: dict[int, bytes] = {}
        self.say()

    def read(self) -> None:
        written = b"".join(self._transport.written)
        for event in self._h2.receive_data(written[self._read :]):
            if isinstance(event, DataReceived):
                self.received[event.stream_id] = self.received.get(event.stream_id, b"") + event.data
        self._read = len(written)

    def say(self, step: int = 10**6) -> None:
        data = self._h2.data_to_send()
        for at in range(0, len(data), step):
            self._connection.data_received(data[at : at + step])
        self.read()

    def answer(self, stream: int, message: bytes, *trailers: tuple[str, str], step: int = 10**6) -> None:
        self._h2.send_headers(stream, [(":status", "200")])
        for part in (struct.pack(">BI", 0, len(message)), message):
            self._h2.send_data(stream, part)
        self._h2.send_headers(stream, trailers, end_stream=True)
        self.say(step)

    def widen(self, size: int, stream: int | None = None) -> None:
        self._h2.increment_flow_control_window(size, stream)
        self.say()


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_grpc_answers_may_come_in_pieces(step: int) -> None:
    connection, recorder, transport = connected(GrpcConnection)
    peer = Peer(connection, transport)
    peer.answer(1, b"answer", ("grpc-status", "0"), step=step)
    assert [each[-1] for each in recorder.answers] == [b"answer"]
    assert peer.received == {1: b"\0\0\0\0\3ask", 3: b"\0\0\0\0\3ask"}


@pytest.mark.parametrize(("trailer", "failure"), [("grpc-status", "grpc-status 3: "), ("x", "grpc-status missing: ")])
def test_a_failed_call_is_a_failure(trailer: str, failure: str) -> None:
    connection, recorder, transport = connected(GrpcConnection)
    Peer(connection, transport).answer(1, b"", (trailer, "3"), ("grpc-message", "why"))
    assert recorder.failure == failure + "why"


def test_grpc_waits_for_the_window() -> None:
    connection, recorder, transport = connected(GrpcConnection, (b"x" * 100_000,))
    peer = Peer(connection, transport)
    assert len(peer.received[1]) == 65_535
    peer.widen(100_000)
    assert len(peer.received[1]) == 65_535  # the stream's own window is still shut
    peer.widen(100_000, 1)
    assert peer.received[1] == struct.pack(">BI", 0, 100_000) + b"x" * 100_000
    assert not recorder.failure
