"""One block of load: so many connections, each sends its next request when the last one is answered.

The client does as little as it can while the clock runs: requests are bytes made before, answers are kept and checked
afterwards, every one of them. HTTP/1.1 and gRPC are as much of them as the load needs: grpc.aio as a client takes
several times as long as the servers that it measures.
"""

import asyncio
import gc
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httptools
import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, StreamEnded, StreamReset, TrailersReceived

from serving_load.messages import BadAnswer, HttpAnswer, Question

PATIENCE = 10.0  # seconds beyond the end of a block in which nothing was answered
AHEAD = 2**30  # bytes that the server may send without asking: more than a block
FIELDS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "127.0.0.1"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)


@dataclass
class Recorder:
    """State that all connections of a block share."""

    requests: Sequence[bytes]
    end: float
    answers: list[tuple[int, float, float, Any]] = field(default_factory=list)  # (request, sent, answered, answer)
    failure: str = ""
    open: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def leave(self, failure: str = "") -> None:
        self.failure = self.failure or failure
        self.open -= 1
        if self.open == 0 or failure:
            self.done.set()


class ClosedLoopConnection(asyncio.Protocol):
    """``number`` is where in the list of requests it begins, so that connections ask different things."""

    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder, self._next = recorder, number
        self._sent = 0.0
        self._left = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._sent = time.perf_counter()
        self._send(self._recorder.requests[self._next % len(self._recorder.requests)])

    def _send(self, request: bytes) -> None:
        raise NotImplementedError

    def _answered(self, answer: HttpAnswer | bytes) -> None:
        now, recorder = time.perf_counter(), self._recorder
        recorder.answers.append((self._next % len(recorder.requests), self._sent, now, answer))
        self._next += 1
        if now < recorder.end:
            self._ask()
        else:
            self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave(f"the server closed the connection: {exc}")

    def _leave(self, failure: str = "") -> None:
        if not self._left:
            self._left = True
            self._recorder.leave(failure)


class HttpConnection(ClosedLoopConnection):
    def __init__(self, recorder: Recorder, number: int) -> None:
        super().__init__(recorder, number)
        self._parser = httptools.HttpResponseParser(self)

    def _send(self, request: bytes) -> None:
        self._body, self._header_size = b"", None
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"inference-header-content-length":
            self._header_size = int(value)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._answered(HttpAnswer(self._parser.get_status_code(), self._body, self._header_size))


class GrpcConnection(ClosedLoopConnection):
    """One call at a time."""

    def __init__(self, recorder: Recorder, number: int) -> None:
        super().__init__(recorder, number)
        self._h2 = H2Connection(H2Configuration(header_encoding="utf-8"))

    def connection_made(self, transport: Any) -> None:
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(AHEAD)
        super().connection_made(transport)

    def _send(self, request: bytes) -> None:
        self._message, self._status = b"", dict[str, str]()
        self._unsent = struct.pack(">BI", 0, len(request)) + request
        self._stream = self._h2.get_next_available_stream_id()
        self._h2.send_headers(self._stream, FIELDS)
        self._flush()

    def _flush(self) -> None:
        """Send as much of the request as the windows allow."""
        while self._unsent:
            size = min(self._h2.local_flow_control_window(self._stream), self._h2.max_outbound_frame_size)
            if size == 0:
                break
            part, self._unsent = self._unsent[:size], self._unsent[size:]
            self._h2.send_data(self._stream, part, end_stream=not self._unsent)
        self._transport.write(self._h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            if isinstance(event, DataReceived):
                self._message += event.data
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, ResponseReceived | TrailersReceived):
                self._status |= dict(event.headers)
            elif isinstance(event, StreamEnded):
                self._on_end(self._status.get("grpc-status", "missing"))
            elif isinstance(event, StreamReset | ConnectionTerminated):
                self._leave(f"the server ended the call or the connection: {event}")
        self._flush()

    def _on_end(self, status: str) -> None:
        if status == "0":
            self._answered(self._message[5:])
        else:
            self._leave(f"grpc-status {status}: {self._status.get('grpc-message', '')}")


class Block(NamedTuple):
    """Requests per second and the latencies, in seconds, after the warm-up; ``answers`` counts all of the block.

    ``core_seconds`` are those that the server computed per request: other processes hardly change them. ``busy`` has
    the cores that others than the server and this process used, ``memory`` the megabytes of the server.
    """

    rate: float
    median: float
    p99: float
    answers: int
    core_seconds: float = 0.0
    busy: float = 0.0
    memory: float = 0.0


def run_block(
    address: tuple[str, int],
    questions: Sequence[Question],
    protocol: str,
    concurrency: int,
    warm_up: float,
    seconds: float,
) -> Block:
    """Raises BadAnswer when one answer is wrong, late or missing."""
    requests = [question.encode(protocol) for question in questions]
    connect = GrpcConnection if protocol == "grpc" else HttpConnection
    gc.collect()
    gc.disable()
    try:
        recorder = uvloop.run(_drive(connect, address, requests, concurrency, warm_up + seconds))
    finally:
        gc.enable()
    for index, _, _, answer in recorder.answers:
        questions[index].check(protocol, answer)  # first: an error that was answered says more than a lost connection
    if recorder.failure:
        raise BadAnswer(recorder.failure)
    start, end = recorder.end - seconds, recorder.end
    times = sorted(done - sent for _, sent, done, _ in recorder.answers if start <= done < end)
    if not times:
        raise BadAnswer("no answer came within the measured time")
    p99 = times[int(0.99 * (len(times) - 1))]
    return Block(len(times) / seconds, statistics.median(times), p99, len(recorder.answers))


async def _drive(
    connect: Callable[[Recorder, int], asyncio.Protocol],
    address: tuple[str, int],
    requests: Sequence[bytes],
    concurrency: int,
    seconds: float,
) -> Recorder:
    loop = asyncio.get_running_loop()
    recorder = Recorder(requests, time.perf_counter() + seconds, open=concurrency)
    transports = []
    for number in range(concurrency):
        transport, _ = await loop.create_connection(lambda number=number: connect(recorder, number), *address)
        transports.append(transport)
    try:
        await asyncio.wait_for(recorder.done.wait(), seconds + PATIENCE)
    except TimeoutError:
        recorder.failure = f"{recorder.open} connections were still waiting {PATIENCE:g} s after the end"
    for transport in transports:
        transport.close()
    return recorder
