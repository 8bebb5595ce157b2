"""Answers that leave a replica in one piece.

uvicorn, which Ray runs in each replica, writes the head of an answer and then its body. A replica that is killed in
between leaves half an answer with the client, and HAProxy can no longer ask another one.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http import httptools_impl

_Cycle: Any = httptools_impl.RequestResponseCycle


class _HeadFirst:
    """A transport that writes what it was given before the first thing that it is asked to write."""

    def __init__(self, transport: Any, head: bytes) -> None:
        self._transport, self._head = transport, head

    def write(self, data: bytes) -> None:
        self._transport.write(self._head + data)
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Collector:
    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


class WholeAnswerCycle(_Cycle):  # type: ignore[misc]  # its base is Any
    """The head waits for the first part of the body."""

    transport: Any

    async def send(self, message: Any) -> None:
        if message["type"] != "http.response.start" or self.disconnected:
            await super().send(message)
            return
        transport, collector = self.transport, _Collector()
        self.transport = collector
        try:
            await super().send(message)
        finally:
            self.transport = _HeadFirst(transport, collector.written)


def send_whole_answers() -> None:
    """For every connection that is opened from now on."""
    httptools_impl.RequestResponseCycle = WholeAnswerCycle  # type: ignore[misc]
