"""What a server sends on one connection, within the windows that the peer has opened."""

from __future__ import annotations

from typing import Any

from osa_runtime.serving import http2_frames as h2
from osa_runtime.serving.http2_frames import ConnectionFault
from osa_runtime.serving.http2_stream import Stream

LARGEST_FRAME = 256 << 10


class Outbox:
    """``stream_window`` is the window of streams to come, ``largest_frame`` what the peer takes in one piece."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._window = h2.DEFAULT_WINDOW
        self.stream_window = h2.DEFAULT_WINDOW
        self.largest_frame = h2.DEFAULT_FRAME

    def write(self, data: bytes) -> None:
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def widen(self, stream: Stream | None, size: int) -> bool:
        """Whether the peer may open its window so far; for the connection's own it must."""
        if stream is not None:
            stream.window += size
            return size > 0 and stream.window <= h2.LARGEST_WINDOW
        self._window += size
        if size == 0 or self._window > h2.LARGEST_WINDOW:
            raise ConnectionFault(h2.FLOW_CONTROL_ERROR, "the window is too large, or grows by nothing")
        return True

    def send(self, stream: Stream, head: bytes, data: bytes, trailers: bytes | None) -> bool:
        """Send, or keep what the windows do not allow yet. Whether the stream has ended with it."""
        start = h2.frame(h2.HEADERS, h2.END_HEADERS, stream.id, head) if head else b""
        size = len(data)
        if stream.pending or size > min(self._window, stream.window, self.largest_frame):
            self.write(start)
            stream.pending += data
            stream.trailers = trailers
            return self.flush(stream)
        self._window -= size
        stream.window -= size
        middle = h2.frame(h2.DATA, 0, stream.id, data) if data else b""
        self.write(start + middle + (_end(stream, trailers) if trailers is not None else b""))
        return trailers is not None

    def flush(self, stream: Stream) -> bool:
        """Send what the windows allow of what waits. Whether the stream has ended with it."""
        chunks: list[bytes] = []
        while stream.pending:
            size = min(len(stream.pending), self._window, stream.window, self.largest_frame)
            if size <= 0:
                break
            chunks.append(h2.frame(h2.DATA, 0, stream.id, bytes(stream.pending[:size])))
            del stream.pending[:size]
            self._window -= size
            stream.window -= size
        ended = not stream.pending and stream.trailers is not None
        if ended and stream.trailers is not None:
            chunks.append(_end(stream, stream.trailers))
        self.write(b"".join(chunks))
        return ended


def _end(stream: Stream, trailers: bytes) -> bytes:
    end = h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream.id, trailers)
    # what the peer still sends of a request that was answered early is not wanted
    return end if stream.ended_there else end + h2.reset(stream.id, h2.NO_ERROR)
