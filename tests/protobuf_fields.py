"""Pieces of protobuf messages that its own writer would not put together so."""

from __future__ import annotations


def field(number: int, content: bytes) -> bytes:
    """A field of bytes, as protobuf writes it."""
    size, digits = len(content), bytearray()
    while size > 0x7F:
        digits.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2]) + bytes(digits) + bytes([size]) + content
