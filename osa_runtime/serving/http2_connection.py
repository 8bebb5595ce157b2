"""A server's side of an HTTP/2 connection (RFC 9113) on asyncio: frames, flow control, and header blocks.

It answers what it must, hands requests to a handler, and trusts the peer with nothing: every size, number and order is
checked.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from osa_runtime.serving import http2_frames as h2
from osa_runtime.serving.connections import LINGER, Connections
from osa_runtime.serving.http2_frames import ConnectionFault
from osa_runtime.serving.http2_headers import LARGEST_BLOCK, HeaderBlocks, Headers
from osa_runtime.serving.http2_outbox import LARGEST_FRAME, Outbox
from osa_runtime.serving.http2_stream import Opening, Stream

Accept = Callable[[Headers], Opening]
Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]

WINDOW = 4 << 20  # bytes that a peer may send ahead, per stream; four times that per connection
STREAMS = 512
GREETING = 20.0  # seconds from the connection to its first bytes
IDLE_RESETS = 1000  # requests that a peer may cancel beyond those it waited for


class Http2Connection(asyncio.Protocol):
    def __init__(
        self, accept: Accept, connections: set[Http2Connection], most_held: int, count: Connections, later: Later
    ) -> None:
        self._connections, self._count, self._later = connections, count, later
        self.served = False  # false for a connection beyond the limit: its calls are refused
        self._timers: list[asyncio.TimerHandle] = []
        self._most_held, self._held = most_held, 0  # bytes of requests that have not ended, all streams together
        self._transport: Any = None
        self._outbox: Outbox = None  # type: ignore[assignment]  # from connection_made on
        self._rest = b""  # of a frame that has not come whole
        self._greeted = False
        self._blocks: HeaderBlocks[Opening] = HeaderBlocks(accept)
        self._block: tuple[int, int, bytearray] | None = None  # (stream, flags, bytes) until END_HEADERS
        self._streams: dict[int, Stream] = {}
        self._last = 0
        self._received = 0  # bytes since the last update of the connection's window
        self._resets = 0
        self._leaving = False

    @property
    def busy(self) -> bool:
        return bool(self._streams)

    def connection_made(self, transport: Any) -> None:
        self._transport, self._outbox = transport, Outbox(transport)
        self.served = self._count.enter()
        if not self.served and self._count.overrun:
            transport.abort()
            return
        self._connections.add(self)
        values = {h2.MAX_CONCURRENT_STREAMS: STREAMS, h2.INITIAL_WINDOW_SIZE: WINDOW, h2.MAX_FRAME_SIZE: LARGEST_FRAME}
        ahead = h2.window_update(0, 4 * WINDOW - h2.DEFAULT_WINDOW)
        transport.write(h2.settings(values | {h2.MAX_HEADER_LIST_SIZE: LARGEST_BLOCK}) + ahead)
        self._timers = [self._later(GREETING, self._expect_greeting)]
        if not self.served:
            # GOAWAY at once would make clients of gRPC come again at once; the calls are refused instead
            self._timers += [self._later(LINGER, self.leave), self._later(2 * LINGER, self.close)]

    def _expect_greeting(self) -> None:
        if not self._greeted:
            self.close()  # whoever says nothing takes no place for ever

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._count.leave(self.served)
        for timer in self._timers:
            timer.cancel()
        self._connections.discard(self)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            if stream.handler is not None:
                stream.handler.on_reset(stream)

    def pause_writing(self) -> None:
        self._transport.pause_reading()  # a peer that does not read its answers is not read, either

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def leave(self) -> None:
        """Take no new streams; the connection closes when those under way have ended."""
        self._leaving = True
        self._transport.write(h2.goaway(self._last, h2.NO_ERROR))
        if not self._streams:
            self._transport.close()

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        try:
            if not self._rest and self._read_call(data):
                return
            data = self._rest + data if self._rest else data
            self._rest = data[self._read_frames(data) :]
        except ConnectionFault as fault:
            self._transport.write(h2.goaway(self._last, fault.code, str(fault)))
            self._transport.close()
            self._rest = b""

    def _read_call(self, data: bytes) -> bool:
        """Take a call that came whole and alone, with headers that came before, as most do. False if it is not one.

        Frame by frame it would go the same way in twice the time.
        """
        if len(data) < 2 * h2.HEADER_SIZE or not self._greeted or self._block is not None or self._leaving:
            return False
        size, kind, flags, number = h2.read_header(data, 0)
        at = h2.HEADER_SIZE + size
        if kind != h2.HEADERS or flags != h2.END_HEADERS or len(data) < at + h2.HEADER_SIZE:
            return False
        opening = self._blocks.known(data[h2.HEADER_SIZE : at])
        size, kind, flags, same = h2.read_header(data, at)
        start = at + h2.HEADER_SIZE
        whole = kind == h2.DATA and flags == h2.END_STREAM and same == number and start + size == len(data)
        fits = size <= LARGEST_FRAME and self._held + size <= self._most_held and len(self._streams) < STREAMS
        if opening is None or not whole or not fits or number % 2 == 0 or number <= self._last:
            return False
        self._last = number
        stream = self._streams[number] = Stream(self, number, self._outbox.stream_window)
        stream.ended_there = True
        stream.alone = len(self._streams) == 1 and self._count.open == 1
        self._replenish(None, size)
        handler = stream.handler = opening(stream)
        handler.on_whole(stream, data[start:])
        return True

    def _read_frames(self, buffer: bytes) -> int:
        """Where the first frame begins that is not whole."""
        at = 0
        if not self._greeted:
            if not h2.PREFACE.startswith(buffer[: len(h2.PREFACE)]):
                raise ConnectionFault(h2.PROTOCOL_ERROR, "this port speaks gRPC over HTTP/2")
            if len(buffer) < len(h2.PREFACE):
                return 0
            self._greeted, at = True, len(h2.PREFACE)
        while len(buffer) - at >= h2.HEADER_SIZE:
            size, kind, flags, stream = h2.read_header(buffer, at)
            if size > LARGEST_FRAME:
                raise ConnectionFault(h2.FRAME_SIZE_ERROR, "the frame is too large")
            end = at + h2.HEADER_SIZE + size
            if len(buffer) < end:
                break
            payload = buffer[at + h2.HEADER_SIZE : end]
            at = end
            self._on_frame(kind, flags, stream, payload)
            if self._transport.is_closing():
                return len(buffer)
        return at

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None and (kind != h2.CONTINUATION or stream != self._block[0]):
            raise ConnectionFault(h2.PROTOCOL_ERROR, "a header block was interrupted")
        if kind == h2.DATA:
            self._on_data(flags, stream, payload)
        elif kind == h2.HEADERS:
            block = h2.without_padding(flags, payload)
            self._on_block(stream, flags, block[5:] if flags & h2.HAS_PRIORITY else block)
        elif kind == h2.CONTINUATION:
            self._on_continuation(flags, payload)
        elif kind == h2.WINDOW_UPDATE:
            self._on_window_update(stream, payload)
        elif kind == h2.RST_STREAM:
            self._on_reset(stream, payload)
        elif kind == h2.SETTINGS:
            self._on_settings(flags, stream, payload)
        elif kind == h2.PING:
            self._on_ping(flags, stream, payload)
        elif kind == h2.PUSH_PROMISE:
            raise ConnectionFault(h2.PROTOCOL_ERROR, "clients do not push")
        # GOAWAY, PRIORITY and kinds that are unknown need no answer

    # Requests

    def _on_block(self, stream: int, flags: int, block: bytes) -> None:
        if stream % 2 == 0:
            raise ConnectionFault(h2.PROTOCOL_ERROR, "streams of clients have odd numbers")
        if flags & h2.END_HEADERS:
            self._on_headers(stream, flags, block)
        else:
            self._block = (stream, flags, bytearray(block))

    def _on_continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise ConnectionFault(h2.PROTOCOL_ERROR, "there is no header block to continue")
        stream, first, block = self._block
        block += payload
        if len(block) > LARGEST_BLOCK or not payload:
            raise ConnectionFault(h2.ENHANCE_YOUR_CALM, "the header block is too large")
        if flags & h2.END_HEADERS:
            self._block = None
            self._on_headers(stream, first, bytes(block))

    def _on_headers(self, number: int, flags: int, block: bytes) -> None:
        opening = self._blocks.read(block)
        known = self._streams.get(number)
        if known is not None:  # trailers
            if not flags & h2.END_STREAM or known.ended_there:
                raise ConnectionFault(h2.PROTOCOL_ERROR, "headers within a request")
            self._end(known)
            return
        if number <= self._last:
            raise ConnectionFault(h2.STREAM_CLOSED, "the stream was used before")
        self._last = number
        if self._leaving or len(self._streams) >= STREAMS:
            self._transport.write(h2.reset(number, h2.REFUSED_STREAM))
            return
        stream = self._streams[number] = Stream(self, number, self._outbox.stream_window)
        stream.handler = opening(stream)
        if flags & h2.END_STREAM:
            self._end(stream)

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        stream = self._streams.get(number)
        if stream is None:
            if number == 0 or number > self._last:
                raise ConnectionFault(h2.PROTOCOL_ERROR, "data without a request")
            self._replenish(None, len(payload))  # of a stream that has ended here
            return
        if stream.ended_there:
            raise ConnectionFault(h2.STREAM_CLOSED, "data after the end of the request")
        data = h2.without_padding(flags, payload)
        stream.held += len(data)
        self._held += len(data)
        if self._held > self._most_held:
            raise ConnectionFault(h2.ENHANCE_YOUR_CALM, "too much of unfinished requests on one connection")
        if data and stream.handler is not None:
            stream.handler.on_data(stream, data)
        self._replenish(None if flags & h2.END_STREAM else stream, len(payload))
        if flags & h2.END_STREAM and number in self._streams:
            self._end(stream)

    def _replenish(self, stream: Stream | None, size: int) -> None:
        """Let the peer send as much again, in steps of half a window."""
        self._received += size
        if self._received > 4 * WINDOW:
            raise ConnectionFault(h2.FLOW_CONTROL_ERROR, "more data than the window allows")
        if self._received >= 2 * WINDOW:
            self._transport.write(h2.window_update(0, self._received))
            self._received = 0
        if stream is not None and not stream.ended_here:
            stream.received += size
            if stream.received > WINDOW:
                raise ConnectionFault(h2.FLOW_CONTROL_ERROR, "more data than the window allows")
            if stream.received >= WINDOW // 2:
                self._transport.write(h2.window_update(stream.id, stream.received))
                stream.received = 0

    def _end(self, stream: Stream) -> None:
        stream.ended_there = True
        self._release(stream)
        if stream.handler is not None:
            stream.handler.on_end(stream)

    def _on_reset(self, number: int, payload: bytes) -> None:
        if number == 0 or number > self._last or len(payload) != 4:
            raise ConnectionFault(h2.PROTOCOL_ERROR, "a reset of no stream")
        stream = self._streams.get(number)
        if stream is None:
            return
        self._resets += 1
        if self._resets > IDLE_RESETS and 2 * self._resets > self._last // 2:
            raise ConnectionFault(h2.ENHANCE_YOUR_CALM, "too many requests were cancelled")
        self._forget(stream)
        if stream.handler is not None:
            stream.handler.on_reset(stream)

    # The connection

    def _on_settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) % 6 or (flags & h2.ACK and payload):
            raise ConnectionFault(h2.FRAME_SIZE_ERROR, "malformed settings")
        if flags & h2.ACK:
            return
        for key, value in struct.iter_unpack(">HI", payload):
            if key == h2.INITIAL_WINDOW_SIZE:
                if value > h2.LARGEST_WINDOW:
                    raise ConnectionFault(h2.FLOW_CONTROL_ERROR, "the window is too large")
                for each in self._streams.values():
                    each.window += value - self._outbox.stream_window
                self._outbox.stream_window = value
            elif key == h2.MAX_FRAME_SIZE:
                self._outbox.largest_frame = min(max(value, h2.DEFAULT_FRAME), LARGEST_FRAME)
        self._transport.write(h2.frame(h2.SETTINGS, h2.ACK, 0))
        self._flush()

    def _on_ping(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) != 8:
            raise ConnectionFault(h2.FRAME_SIZE_ERROR, "malformed ping")
        if not flags & h2.ACK:
            self._transport.write(h2.frame(h2.PING, h2.ACK, 0, payload))

    def _on_window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(h2.FRAME_SIZE_ERROR, "malformed window update")
        size = int.from_bytes(payload, "big") & h2.LARGEST_WINDOW
        stream = self._streams.get(number)
        if number == 0:
            self._outbox.widen(None, size)
        elif stream is not None and not self._outbox.widen(stream, size):
            self.reset(stream, h2.FLOW_CONTROL_ERROR)
        self._flush()

    # Answers

    def send(self, stream: Stream, head: bytes, data: bytes, trailers: bytes | None) -> None:
        if stream.id in self._streams and self._outbox.send(stream, head, data, trailers):
            self._forget(stream)

    def _flush(self) -> None:
        for stream in [s for s in self._streams.values() if s.pending]:
            if self._outbox.flush(stream):
                self._forget(stream)

    def reset(self, stream: Stream, code: int) -> None:
        if stream.id in self._streams:
            self._outbox.write(h2.reset(stream.id, code))
            self._forget(stream)
            if stream.handler is not None:
                stream.handler.on_reset(stream)

    def _release(self, stream: Stream) -> None:
        self._held -= stream.held
        stream.held = 0

    def _forget(self, stream: Stream) -> None:
        self._release(stream)
        self._streams.pop(stream.id, None)
        stream.ended_here = True
        if self._leaving and not self._streams:
            asyncio.get_running_loop().call_soon(self._transport.close)
