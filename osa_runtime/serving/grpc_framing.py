"""gRPC on top of HTTP/2: messages with their prefix, and the status at the end."""

from __future__ import annotations

import struct
from urllib.parse import quote

from hpack import Encoder

from osa_runtime.serving.compression import decompress
from osa_runtime.serving.refusals import BadRequest, Refusal, TooLarge, Unsupported

# HPACK by hand: index 8 is ":status 200", 31 the name content-type; nothing enters the peer's table.
CONTENT_TYPE = b"application/grpc"
ANSWER_HEADERS = b"\x88\x0f\x10" + bytes([len(CONTENT_TYPE)]) + CONTENT_TYPE
OK_TRAILERS = b"\x00\x0bgrpc-status\x010"

CODES = {
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "UNAUTHENTICATED": 16,
}
MESSAGE = struct.Struct(">BI")  # whether it is compressed, its size
PREFIX = MESSAGE.size
LONGEST_MESSAGE = 4000  # characters of an error that go into a header


def write_message(content: bytes) -> bytes:
    return MESSAGE.pack(0, len(content)) + content


def error_trailers(refusal: Refusal, *, alone: bool) -> bytes:
    """The encoded trailers of a call that failed; ``alone`` when no headers went before."""
    fields = [("grpc-status", str(CODES[refusal.code]))]
    fields.append(("grpc-message", quote(str(refusal)[:LONGEST_MESSAGE], safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")))
    if refusal.retry_after is not None:
        fields.append(("retry-after", str(refusal.retry_after)))
    # "sensitive" keeps them out of the peer's table, which later calls do not know of
    block = Encoder().encode([(name, value, True) for name, value in fields], huffman=False)
    return (ANSWER_HEADERS if alone else b"") + block


def plain_message(data: bytes, limit: int) -> bytes | None:
    """The message, if the data of a call is one whole message within the limit that is not compressed."""
    if not PREFIX <= len(data) <= PREFIX + limit:
        return None
    compressed, size = MESSAGE.unpack_from(data)
    return data[PREFIX:] if compressed == 0 and len(data) == PREFIX + size else None


class MessageReader:
    """Messages out of the bytes of a stream, none larger than the limit."""

    def __init__(self, encoding: str, limit: int) -> None:
        self._encoding, self._limit = encoding, limit
        self._chunks: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)
        if self._size > self._limit + PREFIX:  # of the first message, or of several that nobody has read
            raise TooLarge(f"The message has more than {self._limit} bytes, the limit of this server.")

    def next(self) -> bytes | None:
        """The next whole message; None when more bytes must come."""
        if self._size < PREFIX:
            return None
        buffer = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        compressed, size = MESSAGE.unpack_from(buffer)
        end = PREFIX + size
        if len(buffer) < end:
            self._chunks = [buffer]
            return None
        self._chunks, self._size = [buffer[end:]], len(buffer) - end
        message = buffer[PREFIX:end]
        if compressed == 0:
            return message
        if self._encoding not in ("gzip", "deflate"):
            raise Unsupported(f"The message encoding is {self._encoding!r}, expected gzip, deflate or identity.")
        return decompress(message, self._encoding, self._limit)

    def single(self) -> bytes:
        """The only message of a call that has ended."""
        message = self.next()
        if message is None or self._size:
            raise BadRequest("The call has no message, more than one, or a message that is cut short.")
        return message
