"""HTTP/1.1 with keep-alive, as little of it as the load needs."""

from __future__ import annotations

import re
import time
from typing import Any

from serving_load.closed_loop import ClosedLoopConnection
from serving_load.load import Recorder

LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
CHUNKED = re.compile(rb"(?i)\r\ntransfer-encoding: *chunked")
LAST_CHUNK = b"0\r\n\r\n"


class HttpConnection(ClosedLoopConnection):
    def __init__(self, recorder: Recorder, number: int) -> None:
        super().__init__(recorder, number)
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._recorder.requests[self._next % len(self._recorder.requests)])

    def data_received(self, data: bytes) -> None:
        self._buffer = buffer = self._buffer + data if self._buffer else data
        head = buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        length = LENGTH.search(buffer, 0, head + 2)
        if length is not None:
            if len(buffer) >= head + 4 + int(length[1]):
                self._on_answer(buffer)
        elif not CHUNKED.search(buffer, 0, head + 2):
            self._leave(f"an answer without a length: {buffer[:head].decode(errors='replace')}")
        elif buffer.endswith(LAST_CHUNK):
            body = join_chunks(buffer[head + 4 :])
            if body is not None:
                self._on_answer(buffer[: head + 4] + body)

    def _on_answer(self, answer: bytes) -> None:
        self._buffer = b""
        self._answered(answer)


def join_chunks(content: bytes) -> bytes | None:
    """The body of a chunked answer; None when more must come."""
    parts, at = [], 0
    while (line := content.find(b"\r\n", at)) >= 0:
        size = int(content[at:line].partition(b";")[0], 16)
        start, at = line + 2, line + 2 + size + 2
        if at > len(content):
            return None
        if size == 0:
            return b"".join(parts)
        parts.append(content[start : start + size])
    return None
