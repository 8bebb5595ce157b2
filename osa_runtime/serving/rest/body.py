"""The body of an ASGI request, read when it is wanted and no further than the limit."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from osa_runtime.serving.refusals import TooLarge


class Body:
    """``announced`` is its length; None when it comes in chunks. ``unread`` until the last byte has come.

    ``received`` counts the bytes that have come.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.announced: int | None = None
        self.unread = True
        self.received = 0

    def expect(self, announced: int | None) -> None:
        self.announced = announced
        self.unread = announced != 0

    def check(self, limit: int) -> None:
        if self.announced is not None and self.announced > limit:
            raise body_too_large(limit)

    async def read(self, limit: int) -> bytes | bytearray:
        self.check(limit)
        content = bytearray()
        while self.unread:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk = message.get("body", b"")
            self.unread = message.get("more_body", False)
            self.received += len(chunk)
            if self.received > limit:
                raise body_too_large(limit)
            if not content and not self.unread:
                return chunk
            content += chunk
        return content

    async def left(self) -> None:
        """Return when the client has gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


def replay(content: bytes | bytearray) -> Receive:
    """``receive`` for a body that has been read."""

    async def receive() -> Message:
        return {"type": "http.request", "body": bytes(content), "more_body": False}

    return receive


def body_too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body has more than {limit} bytes, the limit of this server for such a request.")
