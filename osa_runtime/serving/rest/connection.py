"""One HTTP connection, with the limits of time and size that uvicorn does not have.

It is between the transport and uvicorn's protocol, of which it uses nothing but the methods of ``asyncio.Protocol``.
The application finds it in the state of its scope, and reports the progress of each request to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import http
import re
import socket
import struct
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from osa_runtime.serving.engine.limits import LINGER, Connections
from osa_runtime.serving.refusals import BadRequest, HeadTooLarge, Refusal, TooSlow
from osa_runtime.serving.rest.body import write_error

MAX_HEAD = 64 << 10  # bytes
MAX_HEADERS = 100
HEAD_TIME = 10.0  # seconds from the first byte of a head to its last
IDLE_TIME = 75.0  # seconds that a connection may stay open without a request
STALL, TAKEN = 10.0, 64 << 10  # an answer must be read at this rate: bytes, seconds
MAX_PIPELINED = 256  # pipelined requests
SMALL_CHUNK = re.compile(rb"\r\n0*[0-9a-fA-F]{1,2}(?:;[^\r\n]*)?\r\n")  # the line before less than 256 bytes
MAX_SMALL_CHUNKS = 4096  # in one body
UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
RESET = struct.pack("ii", 1, 0)  # of SO_LINGER


class Phase(enum.Enum):
    IDLE = enum.auto()  # no request has begun
    HEAD = enum.auto()
    BODY = enum.auto()  # the head is complete; the application reads the body
    ANSWER = enum.auto()  # the request is complete; its answer is on the way
    ENDING = enum.auto()  # everything is sent; what the client still sends is ignored


class HttpConnection(asyncio.Protocol):
    """``served`` is false for a connection beyond the limit."""

    def __init__(self, connections: Connections, longest: float) -> None:
        self.inner: asyncio.Protocol
        self.served = False
        self._connections, self._longest = connections, longest
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._phase = Phase.IDLE
        self._since = self._loop.time()  # the beginning of the request, or the end of the last one
        self._head = b""  # what has come of a head
        self._chunked, self._small_chunks = False, 0
        self._held = b""  # the part of the next request that arrived while this one is being answered
        self._calls = 0  # of the application
        self._unsent = (0, 0.0)  # bytes of unread answers, and the time
        self._on_lost: Callable[[], None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = _Held(transport)
        self.served = self._connections.add(self)
        self.inner.connection_made(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._phase = Phase.ENDING
        self.inner.connection_lost(exc)
        if self._on_lost is not None:
            self._on_lost()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._phase is Phase.ANSWER:
            self._held = data
            self._transport.hold()
        elif self._phase is not Phase.ENDING:
            try:
                data = self._body(data) if self._phase is Phase.BODY else self._start(data)
            except Refusal as refusal:
                self._refuse(refusal)
            else:
                self.inner.data_received(data)

    def _start(self, data: bytes) -> bytes:
        """Check data that arrives before the head is complete, and return it."""
        if self._phase is Phase.IDLE:
            self._phase, self._since = Phase.HEAD, self._loop.time()
        if data.count(b" HTTP/1.") > MAX_PIPELINED:
            raise BadRequest(f"More than {MAX_PIPELINED} requests came at once; wait for the first answers.")
        head = self._head + data
        end = head.find(b"\r\n\r\n", len(head) - len(head.lstrip(b"\r\n")))  # a request may begin with empty lines
        size = len(head) if end < 0 else end + 4
        if size > MAX_HEAD or head.count(b"\r\n", 0, size) > MAX_HEADERS + 2:
            raise HeadTooLarge(f"The head of the request has more than {MAX_HEAD} bytes or {MAX_HEADERS} headers.")
        if end < 0:
            self._head = head
            return data
        self._phase, self._head, self._small_chunks = Phase.BODY, b"", 0
        fields = head[:size].lower()
        self._chunked = b"\r\ntransfer-encoding:" in fields
        self._body(head[end:])
        return _without_upgrade(data, size - len(head) + len(data)) if b"\r\nupgrade:" in fields else data

    def _body(self, data: bytes) -> bytes:
        if self._chunked:
            self._small_chunks += len(SMALL_CHUNK.findall(data))
            if self._small_chunks > MAX_SMALL_CHUNKS:
                raise BadRequest(f"The body came in more than {MAX_SMALL_CHUNKS} small chunks; send larger ones.")
        return data

    @property
    def alone(self) -> bool:
        """True if no other client is connected."""
        return self._connections.open == 1

    def begin(self) -> None:
        """The application has been called."""
        self._calls += 1
        if self._phase in (Phase.IDLE, Phase.HEAD):  # a pipelined request, whose head arrived with the previous one
            self._head, self._chunked, self._small_chunks = b"", True, 0
        if self._phase is not Phase.ENDING:
            self._phase = Phase.BODY

    def received(self) -> None:
        """The application has the whole request."""
        if self._phase is not Phase.ENDING:
            self._phase = Phase.ANSWER

    def watch(self, on_lost: Callable[[], None]) -> None:
        """``on_lost`` is called when the client leaves before its answer."""
        self._on_lost = on_lost
        if self._transport.is_closing():
            on_lost()

    def end(self) -> None:
        """The application has answered."""
        self._on_lost = None
        if self._phase is not Phase.ENDING:
            self._phase = Phase.ANSWER
            self._loop.call_soon(self._settle, self._calls)

    def _settle(self, calls: int) -> None:
        """No request is under way, unless uvicorn has begun with one that came along with the last."""
        if calls != self._calls or self._phase is not Phase.ANSWER:
            return
        self._phase, self._since = Phase.IDLE, self._loop.time()
        if self._held and not self._transport.is_closing():
            data, self._held = self._held, b""
            self._transport.release()
            self.data_received(data)

    async def linger(self) -> None:
        """Stop writing and wait until the client is gone: closing while it still sends would reset the connection and
        lose the last answer."""
        if self._phase is not Phase.ENDING:
            gone = asyncio.Event()
            self._on_lost = gone.set
            self._transport.release()
            self._half_close()
            await gone.wait()

    def _half_close(self) -> None:
        self._phase = Phase.ENDING
        self._transport.end()
        self._loop.call_later(LINGER, self._transport.close)

    def _refuse(self, refusal: Refusal) -> None:
        """Answer without the application."""
        headers, content = write_error(refusal)
        headers += [(b"content-length", b"%d" % len(content)), (b"connection", b"close")]
        status = http.HTTPStatus(refusal.status)
        lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode(), *(b"%b: %b" % field for field in headers)]
        self._transport.write(b"\r\n".join([*lines, b"", content]))
        self._half_close()

    @property
    def idle_since(self) -> float | None:
        return self._since if self._phase is Phase.IDLE else None

    def drop(self) -> None:
        """Close at once and drop unread answers, which the kernel would keep."""
        with contextlib.suppress(OSError):  # it may be closed already
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._transport.abort()

    def sweep(self, now: float) -> None:
        """Close connections that take too long."""
        age = now - self._since
        if self._is_stalled(now) or (not self.served and age > LINGER):
            self.drop()
        elif self._phase is Phase.IDLE and age > IDLE_TIME:
            self._transport.close()
        elif self._phase is Phase.HEAD and age > min(HEAD_TIME, self._longest):
            self._refuse(TooSlow(f"The head of the request was not finished within {HEAD_TIME:g} s."))
        elif self._phase is Phase.BODY and age > self._longest:
            self._refuse(TooSlow(f"The request was not finished within {self._longest:g} s."))

    def _is_stalled(self, now: float) -> bool:
        """True if the client does not read its answers."""
        size, (before, since) = self._transport.get_write_buffer_size(), self._unsent
        if not size or not before or size <= before - TAKEN:
            self._unsent = (size, now)
            return False
        return now - since > min(STALL, self._longest)


class _Held:
    """The transport that uvicorn sees: reading also waits for us, and writes after the end are ignored.

    uvicorn goes on reading after each answer, however many requests have queued up, and it answers clients that have
    left. It writes the head and the body of an answer separately; here they are sent together.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._holding = self._ended = False
        self._unsent: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self.is_closing = transport.is_closing  # asked in every request

    def hold(self) -> None:
        self._holding = True
        self._transport.pause_reading()

    def release(self) -> None:
        self._holding = False
        self._transport.resume_reading()

    def resume_reading(self) -> None:
        if not self._holding:
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if not self._ended and not self.is_closing():
            if not self._unsent:
                self._loop.call_soon(self._flush)
            self._unsent.append(data)

    def _flush(self) -> None:
        if self._unsent and not self.is_closing():
            self._transport.writelines(self._unsent)
        self._unsent = []

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def end(self) -> None:
        self._flush()
        self._ended = True
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _without_upgrade(data: bytes, end: int) -> bytes:
    """Remove an offer to upgrade, which may be ignored: the parser would take the body for the other protocol."""
    return UPGRADE.sub(b"\r\nignored:", data[:end]) + data[end:]


def protocol_factory(connections: Connections, longest: float) -> Any:
    """A protocol class for uvicorn."""

    def create(*, app_state: dict[str, Any], **arguments: Any) -> asyncio.Protocol:
        connection = HttpConnection(connections, longest)
        connection.inner = HttpToolsProtocol(app_state={**app_state, "connection": connection}, **arguments)
        return connection

    return create
