"""One HTTP/2 stream of a server: what has come in, and what waits for the peer's window to go out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Handler(Protocol):
    """What a stream's request is given to."""

    def on_data(self, stream: Stream, data: bytes) -> None: ...

    def on_end(self, stream: Stream) -> None: ...

    def on_whole(self, stream: Stream, data: bytes) -> None:
        """All data, and the end."""

    def on_reset(self, stream: Stream) -> None:
        """The peer has cancelled, or the connection is lost."""


class Stream:
    __slots__ = (
        "alone",
        "connection",
        "ended_here",
        "ended_there",
        "handler",
        "held",
        "id",
        "pending",
        "received",
        "trailers",
        "window",
    )

    def __init__(self, connection: Any, number: int, window: int) -> None:
        self.connection = connection
        self.id = number
        self.window = window  # bytes that the peer lets us send
        self.received = 0  # bytes since the last window update
        self.held = 0  # bytes of a request that has not ended
        self.handler: Handler | None = None
        self.pending = bytearray()  # data that waits for the window
        self.trailers: bytes | None = None  # what ends the stream once all data has gone
        self.ended_there = False
        self.ended_here = False
        self.alone = False  # nobody else can have asked anything by now

    def send(self, head: bytes, data: bytes, trailers: bytes | None) -> None:
        """Encoded headers (maybe none), data, and encoded trailers that end the stream (None: more comes)."""
        self.connection.send(self, head, data, trailers)

    def reset(self, code: int) -> None:
        self.connection.reset(self, code)


Opening = Callable[[Stream], Handler]  # what makes the handler of a request
