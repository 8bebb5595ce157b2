"""Reading the body of an ASGI request, no further than the limit."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from osa_runtime.serving.refusals import TooLarge


async def read_body(receive: Receive, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise body_too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def body_too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body has more than {limit} bytes, the limit of this server.")
