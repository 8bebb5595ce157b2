"""HTTP/2 below any client: what a peer may send, and what it must not."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from osa_runtime.serving import http2_frames as h2
from osa_runtime.serving.connections import LINGER, TOLD, Connections
from osa_runtime.serving.grpc_framing import ANSWER_HEADERS, OK_TRAILERS
from osa_runtime.serving.http2_connection import GREETING, IDLE_RESETS, STREAMS, WINDOW, Http2Connection
from osa_runtime.serving.http2_outbox import LARGEST_FRAME
from osa_runtime.serving.http2_stream import Opening, Stream

REQUEST = [(":method", "POST"), (":path", "/echo"), ("content-type", "application/grpc")]


class Transport:
    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed


class Timer:
    def cancel(self) -> None:
        """Nothing runs it but the test."""


class Echo:
    """Sends back what came, when it has come whole; keeps what it was told."""

    def __init__(self, answer: bytes | None = b"") -> None:
        self.body = b""
        self.answer = answer
        self.events: list[str] = []

    def on_data(self, stream: Stream, data: bytes) -> None:
        self.body += data

    def on_end(self, stream: Stream) -> None:
        self.events.append("end")
        if self.answer is not None:
            stream.send(ANSWER_HEADERS, self.answer or self.body, OK_TRAILERS)

    def on_whole(self, stream: Stream, data: bytes) -> None:
        self.on_data(stream, data)
        self.on_end(stream)

    def on_reset(self, stream: Stream) -> None:
        self.events.append("reset")


class Peer:
    """A client's side: it sends frames, and reads those that the server wrote."""

    def __init__(self, answer: bytes | None = b"", greet: bool = True, count: Connections | None = None) -> None:
        self.transport = Transport()
        self.handlers: list[Echo] = []
        self.headers: list[dict[str, str]] = []
        self.alone: list[bool] = []
        self.answer = answer
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.connection = Http2Connection(self.accept, set(), 8 * WINDOW, count or Connections(8), self.later)
        self.connection.connection_made(self.transport)
        self.encoder, self.decoder = Encoder(), Decoder()
        if greet:
            self.send(h2.PREFACE + h2.settings({}))
            self.frames()

    def later(self, seconds: float, call: Callable[[], None]) -> Any:
        self.timers.append((seconds, call))
        return Timer()

    def accept(self, headers: dict[str, str]) -> Opening:
        def open_call(stream: Stream) -> Echo:
            self.handlers.append(Echo(self.answer))
            self.headers.append(headers)
            self.alone.append(stream.alone)
            return self.handlers[-1]

        return open_call

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)

    def request(self, number: int, body: bytes = b"hello", flags: int = 0) -> None:
        self.send(h2.frame(h2.HEADERS, h2.END_HEADERS | flags, number, self.encoder.encode(REQUEST)))
        self.send(h2.frame(h2.DATA, h2.END_STREAM, number, body))

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        found, data = [], self.transport.written
        while data:
            size, kind, flags, stream = h2.read_header(data, 0)
            found.append((kind, flags, stream, data[9 : 9 + size]))
            data = data[9 + size :]
        self.transport.written = b""
        return found

    def fault(self) -> int | None:
        """The code of the GOAWAY that ended the connection."""
        codes = [struct.unpack(">II", payload[:8])[1] for kind, _, _, payload in self.frames() if kind == h2.GOAWAY]
        return codes[-1] if codes and self.transport.closed else None


def test_a_call_is_answered() -> None:
    peer = Peer()
    for number in (1, 3, 5):  # the second and third have their headers remembered
        peer.request(number)
        head, data, trailers = peer.frames()
        assert head[:3] == (h2.HEADERS, h2.END_HEADERS, number)
        assert data == (h2.DATA, 0, number, b"hello")
        assert trailers[:3] == (h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, number)
        assert dict(peer.decoder.decode(head[3])) == {":status": "200", "content-type": "application/grpc"}
        assert peer.decoder.decode(trailers[3]) == [("grpc-status", "0")]
    assert peer.headers == [dict(REQUEST)] * 3


def test_bytes_may_come_one_by_one() -> None:
    peer = Peer(greet=False)
    whole = h2.PREFACE + h2.settings({}) + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, Encoder().encode(REQUEST))
    for byte in whole + h2.frame(h2.DATA, h2.END_STREAM, 1, b"abc"):
        peer.send(bytes([byte]))
    assert peer.handlers[0].body == b"abc"


@st.composite
def odd_calls(draw: st.DrawFn) -> tuple[int, int, int, int, int, int]:
    """Stream, flags of the headers, stream and flags of the data, bytes of data, bytes too many or too few."""
    number = draw(st.sampled_from((7, 5, 1, 3, 2, 0)))
    rare = draw(st.integers(0, 9))  # most calls are odd in one thing at most
    same = draw(st.sampled_from((1, 3, 4, 0))) if rare == 1 else number
    head = draw(st.sampled_from((h2.END_HEADERS | h2.END_STREAM, 0))) if rare == 2 else h2.END_HEADERS
    data = draw(st.sampled_from((0, h2.PADDED | h2.END_STREAM))) if rare == 3 else h2.END_STREAM
    return (
        number,
        head,
        same,
        data,
        draw(st.sampled_from((0, 5, 300))),
        draw(st.sampled_from((-1, 1, 9))) if rare == 4 else 0,
    )


@given(st.lists(odd_calls(), max_size=6))
def test_calls_in_one_piece_go_the_way_of_single_frames(calls: list[tuple[int, int, int, int, int, int]]) -> None:
    quick, slow = Peer(), Peer()
    block = Encoder().encode(REQUEST)
    for peer in (quick, slow):
        peer.request(1)  # the table grows
        block = peer.encoder.encode(REQUEST)
        peer.send(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 3, block))  # and the block is remembered
    for place, (number, head, same, data, size, rest) in enumerate(calls):
        step = 4 * (place + 1)
        piece = h2.frame(h2.HEADERS, head, number + step, block) + h2.frame(h2.DATA, data, same + step, b"\2" * size)
        piece = piece[:rest] if rest < 0 else piece + b"\0" * rest
        if not quick.transport.closed:
            quick.send(piece)
        for start in range(0, len(piece), 7):
            if not slow.transport.closed:
                slow.send(piece[start : start + 7])
    assert quick.headers == slow.headers
    assert [(h.body, h.events) for h in quick.handlers] == [(h.body, h.events) for h in slow.handlers]
    assert quick.frames() == slow.frames()
    assert quick.transport.closed == slow.transport.closed


def test_a_call_is_alone_when_nobody_else_can_have_asked() -> None:
    count = Connections(8)
    peer = Peer(answer=None, count=count)
    block = b""
    for number in (1, 3):
        block = peer.encoder.encode(REQUEST)
        peer.send(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, number, block))
        peer.send(h2.reset(number, h2.CANCEL))

    def call(number: int) -> bytes:
        return h2.frame(h2.HEADERS, h2.END_HEADERS, number, block) + h2.frame(h2.DATA, h2.END_STREAM, number, b"x")

    peer.send(call(5))
    peer.send(call(7))  # while 5 waits for its answer
    peer.send(h2.reset(5, h2.CANCEL) + h2.reset(7, h2.CANCEL))
    peer.send(call(9) + call(11))  # the second came with the first
    peer.send(h2.reset(9, h2.CANCEL) + h2.reset(11, h2.CANCEL))
    Peer(count=count)
    peer.send(call(13))  # another client may ask at any time
    assert peer.alone[2:] == [True, False, False, False, False]


def test_remembered_headers_follow_the_table() -> None:
    """The same bytes mean something else once the table has grown."""
    peer = Peer()
    for number, value in ((1, "a"), (3, "b"), (5, "a"), (7, "b"), (9, "c"), (11, "a")):
        block = peer.encoder.encode([*REQUEST, ("x-name", value)])
        peer.send(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, number, block))
    assert [headers["x-name"] for headers in peer.headers] == ["a", "b", "a", "b", "c", "a"]


def test_padding_priority_and_continuation() -> None:
    peer = Peer()
    block = peer.encoder.encode(REQUEST)
    padded = b"\x03" + b"\0\0\0\0\x10" + block[:4] + b"\0" * 3
    peer.send(h2.frame(h2.HEADERS, h2.PADDED | h2.HAS_PRIORITY, 1, padded))
    peer.send(h2.frame(h2.CONTINUATION, 0, 1, block[4:6]) + h2.frame(h2.CONTINUATION, h2.END_HEADERS, 1, block[6:]))
    peer.send(h2.frame(h2.DATA, h2.PADDED | h2.END_STREAM, 1, b"\x02abc\0\0"))
    assert peer.headers == [dict(REQUEST)]
    assert peer.handlers[0].body == b"abc"


def test_large_answers_wait_for_the_window() -> None:
    peer = Peer(answer=b"z" * 200_000)
    peer.request(1)
    sent = sum(len(payload) for kind, _, _, payload in peer.frames() if kind == h2.DATA)
    assert sent == h2.DEFAULT_WINDOW
    peer.send(h2.window_update(1, 1_000_000))
    assert peer.frames() == []  # the connection's own window is still shut
    peer.send(h2.window_update(0, 100_000))
    sent += sum(len(payload) for kind, _, _, payload in peer.frames() if kind == h2.DATA)
    assert sent == h2.DEFAULT_WINDOW + 100_000
    peer.send(h2.window_update(0, 100_000))
    frames = peer.frames()
    sent += sum(len(payload) for kind, _, _, payload in frames if kind == h2.DATA)
    assert sent == 200_000
    assert frames[-1][:2] == (h2.HEADERS, h2.END_HEADERS | h2.END_STREAM)
    assert all(len(payload) <= h2.DEFAULT_FRAME for _, _, _, payload in frames)
    assert not peer.connection.busy


def test_settings_change_windows_that_are_open() -> None:
    peer = Peer(answer=b"z" * 200)
    peer.send(h2.settings({h2.INITIAL_WINDOW_SIZE: 50}))
    peer.request(1)
    assert [len(p) for kind, _, _, p in peer.frames() if kind == h2.DATA] == [50]
    peer.send(h2.settings({h2.INITIAL_WINDOW_SIZE: 250}))
    assert [len(p) for kind, _, _, p in peer.frames() if kind == h2.DATA] == [150]


def test_the_peers_window_is_refilled() -> None:
    peer = Peer()
    peer.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, peer.encoder.encode(REQUEST)))
    for _ in range(5 * WINDOW // LARGEST_FRAME):
        peer.send(h2.frame(h2.DATA, 0, 1, b"x" * LARGEST_FRAME))
    updates = [(stream, int.from_bytes(p, "big")) for kind, _, stream, p in peer.frames() if kind == h2.WINDOW_UPDATE]
    assert sum(size for stream, size in updates if stream == 1) >= 4 * WINDOW
    assert sum(size for stream, size in updates if stream == 0) >= 4 * WINDOW
    assert not peer.transport.closed


def test_pings_are_answered_and_unknown_frames_ignored() -> None:
    peer = Peer()
    peer.send(h2.frame(h2.PING, 0, 0, b"12345678") + h2.frame(77, 0, 0, b"?") + h2.frame(h2.PRIORITY, 0, 1, b"\0" * 5))
    assert peer.frames() == [(h2.PING, h2.ACK, 0, b"12345678")]


def test_a_reset_cancels_the_call() -> None:
    peer = Peer(answer=None)
    peer.request(1)
    peer.send(h2.reset(1, h2.CANCEL))
    assert peer.handlers[0].events == ["end", "reset"]
    peer.request(3)
    peer.connection.connection_lost(None)
    assert peer.handlers[1].events == ["end", "reset"]


def test_more_streams_than_allowed_are_refused() -> None:
    peer = Peer(answer=None)
    for number in range(1, 2 * STREAMS + 4, 2):
        peer.request(number)
    refused = [payload for kind, _, _, payload in peer.frames() if kind == h2.RST_STREAM]
    assert refused == [struct.pack(">I", h2.REFUSED_STREAM)] * 2


def test_leaving_finishes_what_was_taken() -> None:
    async def check() -> None:
        peer = Peer(answer=None)
        peer.request(1)
        peer.connection.leave()
        peer.request(3)
        kinds = [(kind, stream) for kind, _, stream, _ in peer.frames()]
        assert kinds == [(h2.GOAWAY, 0), (h2.RST_STREAM, 3)]
        stream = peer.connection._streams[1]
        stream.send(ANSWER_HEADERS, b"late", OK_TRAILERS)
        await asyncio.sleep(0)
        assert len(peer.frames()) == 3
        assert peer.transport.closed

    asyncio.run(check())


BROKEN: dict[str, tuple[bytes, int]] = {
    "no HTTP/2": (b"GET / HTTP/1.1\r\n\r\n", h2.PROTOCOL_ERROR),
    "large frame": (struct.pack(">BHBBI", 0xFF, 0, h2.DATA, 0, 1), h2.FRAME_SIZE_ERROR),
    "even stream": (h2.frame(h2.HEADERS, h2.END_HEADERS, 2), h2.PROTOCOL_ERROR),
    "headers on 0": (h2.frame(h2.HEADERS, h2.END_HEADERS, 0), h2.PROTOCOL_ERROR),
    "data on 0": (h2.frame(h2.DATA, 0, 0, b"x"), h2.PROTOCOL_ERROR),
    "data without request": (h2.frame(h2.DATA, 0, 1, b"x"), h2.PROTOCOL_ERROR),
    "padding": (h2.frame(h2.HEADERS, h2.PADDED | h2.END_HEADERS, 1, b"\x09ab"), h2.PROTOCOL_ERROR),
    "hpack": (h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"\xff\xff\xff\xff\xff"), h2.COMPRESSION_ERROR),
    "continuation alone": (h2.frame(h2.CONTINUATION, 0, 1, b"x"), h2.PROTOCOL_ERROR),
    "interrupted": (h2.frame(h2.HEADERS, 0, 1, b"x") + h2.frame(h2.PING, 0, 0, b"12345678"), h2.PROTOCOL_ERROR),
    "endless block": (
        h2.frame(h2.HEADERS, 0, 1, b"x") + h2.frame(h2.CONTINUATION, 0, 1, b"x" * 16000) * 3,
        h2.ENHANCE_YOUR_CALM,
    ),
    "push": (h2.frame(h2.PUSH_PROMISE, 0, 1, b"\0" * 4), h2.PROTOCOL_ERROR),
    "settings": (h2.frame(h2.SETTINGS, 0, 0, b"123"), h2.FRAME_SIZE_ERROR),
    "huge window": (h2.settings({h2.INITIAL_WINDOW_SIZE: 2**31}), h2.FLOW_CONTROL_ERROR),
    "window overflow": (h2.window_update(0, 2**31 - 1), h2.FLOW_CONTROL_ERROR),
    "ping": (h2.frame(h2.PING, 0, 0, b"123"), h2.FRAME_SIZE_ERROR),
    "reset of nothing": (h2.reset(5, h2.CANCEL), h2.PROTOCOL_ERROR),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_peer_that_breaks_the_protocol_is_told_and_left(case: str) -> None:
    data, code = BROKEN[case]
    peer = Peer(greet=case != "no HTTP/2")
    peer.send(data)
    assert peer.fault() == code


def test_streams_are_used_once() -> None:
    peer = Peer()
    peer.request(3)
    peer.frames()
    peer.request(1)
    assert peer.fault() == h2.STREAM_CLOSED


def test_a_flood_of_cancelled_requests_ends_the_connection() -> None:
    peer = Peer(answer=None)
    number = 1
    while not peer.transport.closed:
        assert number < 8 * IDLE_RESETS
        peer.request(number)
        if not peer.transport.closed:
            peer.send(h2.reset(number, h2.CANCEL))
        number += 2
    assert peer.fault() == h2.ENHANCE_YOUR_CALM


def test_data_beyond_the_window_ends_the_connection() -> None:
    peer = Peer()
    peer.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, peer.encoder.encode(REQUEST)))
    peer.connection._streams[1].received = WINDOW - 10
    peer.send(h2.frame(h2.DATA, 0, 1, b"x" * 11))
    assert peer.fault() == h2.FLOW_CONTROL_ERROR


def test_unfinished_requests_may_hold_only_so_much() -> None:
    peer = Peer()
    for number in range(1, 19, 2):
        peer.send(h2.frame(h2.HEADERS, h2.END_HEADERS, number, peer.encoder.encode(REQUEST)))
        for _ in range(WINDOW // LARGEST_FRAME):
            if not peer.transport.closed:
                peer.send(h2.frame(h2.DATA, 0, number, b"x" * LARGEST_FRAME))
    assert peer.fault() == h2.ENHANCE_YOUR_CALM


@given(st.binary(max_size=300))
def test_any_bytes_end_in_an_answer_or_a_fault(data: bytes) -> None:
    peer = Peer()
    peer.send(data)


@given(
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 255), st.integers(0, 5), st.binary(max_size=30)), max_size=8)
)
def test_any_frames_end_in_an_answer_or_a_fault(frames: list[tuple[int, int, int, bytes]]) -> None:
    peer = Peer()
    peer.request(1)
    for kind, flags, stream, payload in frames:
        if not peer.transport.closed:
            peer.send(h2.frame(kind, flags, stream, payload))


def test_a_peer_that_says_nothing_is_not_waited_for() -> None:
    silent, greeted = Peer(greet=False), Peer()
    for peer in (silent, greeted):
        ((seconds, call),) = peer.timers
        assert seconds == GREETING
        call()
    assert (silent.transport.closed, greeted.transport.closed) == (True, False)


def test_beyond_the_limit_a_connection_is_short_and_then_cut_off() -> None:
    count = Connections(1)
    first = Peer(count=count)
    beyond = [Peer(count=count) for _ in range(TOLD)]
    assert first.connection.served
    assert not any(peer.connection.served or peer.transport.closed for peer in beyond)
    assert [seconds for seconds, _ in beyond[0].timers] == [GREETING, LINGER, 2 * LINGER]
    last = Peer(greet=False, count=count)
    assert last.transport.closed
    assert last.frames() == []  # no settings: a client that got some would come again at once
    beyond[0].request(1)  # whether it is answered is the handler's business
    assert beyond[0].headers == [dict(REQUEST)]
    for _, leave in beyond[0].timers[1:2]:
        leave()
    assert beyond[0].fault() == h2.NO_ERROR
    for peer in (first, *beyond, last):
        peer.connection.connection_lost(None)
    assert (count.open, count.refused) == (0, 0)
