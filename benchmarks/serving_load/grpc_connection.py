"""gRPC over HTTP/2, one call at a time per connection, as little of it as the load needs.

grpc.aio as a client takes several times as long as the servers that it measures.
"""

from __future__ import annotations

import struct
import time
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)

from serving_load.closed_loop import ClosedLoopConnection
from serving_load.load import Recorder

AHEAD = 2**30  # bytes that the server may send without asking: more than a block
FIELDS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "127.0.0.1"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)


class GrpcConnection(ClosedLoopConnection):
    def __init__(self, recorder: Recorder, number: int) -> None:
        super().__init__(recorder, number)
        self._h2 = H2Connection(H2Configuration(header_encoding="utf-8"))
        self._stream = 0
        self._unsent = b""
        self._message = b""
        self._status: dict[str, str] = {}

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(AHEAD)
        self._send()

    def _send(self) -> None:
        message = self._recorder.requests[self._next % len(self._recorder.requests)]
        self._message, self._status = b"", {}
        self._unsent = struct.pack(">BI", 0, len(message)) + message
        self._stream = self._h2.get_next_available_stream_id()
        self._sent = time.perf_counter()
        self._h2.send_headers(self._stream, FIELDS)
        self._flush()

    def _flush(self) -> None:
        """As much of the request as the windows allow."""
        while self._unsent:
            size = min(self._h2.local_flow_control_window(self._stream), self._h2.max_outbound_frame_size)
            if size == 0:
                break
            part, self._unsent = self._unsent[:size], self._unsent[size:]
            self._h2.send_data(self._stream, part, end_stream=not self._unsent)
        self._transport.write(self._h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            self._on_event(event)
        self._flush()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            self._message += event.data
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, ResponseReceived | TrailersReceived):
            self._status |= dict(event.headers)
        elif isinstance(event, StreamEnded):
            self._on_end()
        elif isinstance(event, StreamReset | ConnectionTerminated):
            self._leave(f"the server ended the call or the connection: {event}")

    def _on_end(self) -> None:
        status = self._status.get("grpc-status", "missing")
        if status == "0":
            self._answered(self._message[5:])
        else:
            self._leave(f"grpc-status {status}: {self._status.get('grpc-message', '')}")
