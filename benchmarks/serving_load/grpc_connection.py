"""gRPC over HTTP/2, one call at a time per connection, as little of it as the load needs.

grpc.aio as a client takes several times as long as the servers that it measures. This one tells the server to use no
header table, so that equal header blocks mean the same and each is decoded once.
"""

from __future__ import annotations

import functools
import struct
import time
from typing import Any

from hpack import Decoder, Encoder

from osa_runtime.serving import http2_frames as h2
from serving_load.closed_loop import ClosedLoopConnection
from serving_load.load import Recorder

HEADER_TABLE_SIZE, ENABLE_PUSH = 0x1, 0x2
AHEAD = 2**30  # bytes that the server may send without asking: more than a block
FIELDS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "127.0.0.1"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)


@functools.cache
def call_status(block: bytes) -> str:
    """Empty for success, otherwise the status and its message."""
    fields = {_text(name): _text(value) for name, value in Decoder().decode(block)}
    status = fields.get("grpc-status", "missing")
    return "" if status == "0" else f"grpc-status {status}: {fields.get('grpc-message', '')}"


class GrpcConnection(ClosedLoopConnection):
    def __init__(self, recorder: Recorder, number: int) -> None:
        super().__init__(recorder, number)
        self._encoder = Encoder()
        self._fields = b""
        self._stream = -1
        self._rest, self._message = b"", b""
        self._window, self._stream_window = h2.DEFAULT_WINDOW, h2.DEFAULT_WINDOW
        self._waiting: bytes | None = None  # a request for which the window is too small

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        settings = h2.settings({HEADER_TABLE_SIZE: 0, ENABLE_PUSH: 0, h2.INITIAL_WINDOW_SIZE: AHEAD})
        transport.write(h2.PREFACE + settings + h2.window_update(0, AHEAD))
        self._send()

    def _send(self) -> None:
        message = self._recorder.requests[self._next % len(self._recorder.requests)]
        self._stream += 2
        if self._stream <= 3:  # from the second call on, all fields are in the server's table
            self._fields = self._encoder.encode(FIELDS)
        self._sent = time.perf_counter()
        head = h2.frame(h2.HEADERS, h2.END_HEADERS, self._stream, self._fields)
        data = struct.pack(">BI", 0, len(message)) + message
        if len(data) > min(self._stream_window, h2.DEFAULT_FRAME):
            self._leave(f"a request of {len(data)} bytes is too large for this client")
            return
        rest = h2.frame(h2.DATA, h2.END_STREAM, self._stream, data)
        if len(data) <= self._window:
            self._window -= len(data)
            self._transport.write(head + rest)
        else:
            self._transport.write(head)
            self._waiting = rest

    def data_received(self, data: bytes) -> None:
        buffer = self._rest + data if self._rest else data
        at = 0
        while len(buffer) - at >= h2.HEADER_SIZE:
            size, kind, flags, stream = h2.read_header(buffer, at)
            end = at + h2.HEADER_SIZE + size
            if len(buffer) < end:
                break
            payload, at = buffer[at + h2.HEADER_SIZE : end], end
            self._on_frame(kind, flags, stream, payload)
        self._rest = buffer[at:]

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == h2.DATA:
            self._message += h2.without_padding(flags, payload)
        elif kind == h2.HEADERS:
            if flags & h2.END_STREAM:
                self._on_trailers(h2.without_padding(flags, payload))
        elif kind == h2.WINDOW_UPDATE and stream == 0:
            self._widen(int.from_bytes(payload, "big"))
        elif kind == h2.PING and not flags & h2.ACK:
            self._transport.write(h2.frame(h2.PING, h2.ACK, 0, payload))
        elif kind == h2.SETTINGS and not flags & h2.ACK:
            values = dict(struct.iter_unpack(">HI", payload))
            self._stream_window = values.get(h2.INITIAL_WINDOW_SIZE, self._stream_window)
            self._transport.write(h2.frame(h2.SETTINGS, h2.ACK, 0))
        elif kind in (h2.RST_STREAM, h2.GOAWAY, h2.CONTINUATION):
            self._leave(f"the server sent a frame of kind {kind}: {payload[:200]!r}")

    def _widen(self, size: int) -> None:
        self._window += size
        if self._waiting is not None and len(self._waiting) - h2.HEADER_SIZE <= self._window:
            self._window -= len(self._waiting) - h2.HEADER_SIZE
            self._transport.write(self._waiting)
            self._waiting = None

    def _on_trailers(self, block: bytes) -> None:
        failure = call_status(block)
        if failure:
            self._leave(failure)
            return
        message, self._message = self._message, b""
        self._answered(message[5:])


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
