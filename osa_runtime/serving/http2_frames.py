"""HTTP/2 frames (RFC 9113): their layout, the constants, and those that a server sends."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER = struct.Struct(">BHBBI")  # the size in 24 bits, the kind, flags, the stream
HEADER_SIZE = HEADER.size

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0x0, 0x1, 0x2, 0x3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL = 0x5, 0x6, 0x7, 0x8
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 0x9, 0xB

MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 0x3, 0x4, 0x5, 0x6
DEFAULT_WINDOW = 65535
DEFAULT_FRAME = 16384
LARGEST_WINDOW = 2**31 - 1


class ConnectionFault(Exception):
    """The peer broke the protocol; the connection ends with this code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return HEADER.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def read_header(buffer: bytes, at: int) -> tuple[int, int, int, int]:
    """(payload size, kind, flags, stream) of the frame that starts ``at``."""
    high, low, kind, flags, stream = HEADER.unpack_from(buffer, at)
    return (high << 16) | low, kind, flags, stream & LARGEST_WINDOW


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", key, value) for key, value in values.items()))


def window_update(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size))


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def goaway(last_stream: int, code: int, reason: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream, code) + reason.encode()[:200])


def without_padding(flags: int, payload: bytes) -> bytes:
    """The payload of DATA or HEADERS without padding and priority."""
    start, end = 0, len(payload)
    if flags & PADDED:
        if not payload or payload[0] >= end:
            raise ConnectionFault(PROTOCOL_ERROR, "more padding than frame")
        start, end = 1, end - payload[0]
    return payload[start:end]
