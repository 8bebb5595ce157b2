"""gRPC on top of HTTP/2: messages out of the bytes of a stream, and errors as trailers."""

from __future__ import annotations

import gzip
import struct
from typing import Any

import pytest
from hpack import Decoder

from osa_runtime.serving.grpc_framing import MessageReader, error_trailers, plain_message
from osa_runtime.serving.refusals import BadRequest, Refusal, TooLarge, Unavailable, Unsupported


def message(content: bytes, compressed: int = 0) -> bytes:
    return struct.pack(">BI", compressed, len(content)) + content


def test_messages_are_cut_out_of_the_stream() -> None:
    reader = MessageReader("gzip", 1000)
    for byte in message(b"one") + message(gzip.compress(b"two"), 1) + message(b""):
        reader.feed(bytes([byte]))
    assert [reader.next() for _ in range(4)] == [b"one", b"two", b"", None]


def test_a_whole_message_needs_no_reader() -> None:
    assert plain_message(message(b"one"), 3) == b"one"
    assert plain_message(message(b""), 0) == b""
    assert plain_message(message(b"ones"), 3) is None


@pytest.mark.parametrize(
    ("data", "encoding", "error"),
    [
        (message(b"x" * 1001), "identity", TooLarge),
        (message(gzip.compress(b"x" * 100_000), 1), "gzip", TooLarge),
        (message(b"x", 1), "gzip", BadRequest),
        (message(b"x", 1), "snappy", Unsupported),
        (message(b"x") * 2, "identity", BadRequest),
        (message(b"xyz")[:-1], "identity", BadRequest),
        (b"", "identity", BadRequest),
    ],
    ids=["large", "bomb", "not gzip", "encoding", "two", "short", "none"],
)
def test_wrong_messages_are_refused(data: bytes, encoding: str, error: type[Refusal]) -> None:
    assert plain_message(data, 1000) is None
    reader = MessageReader(encoding, 1000)
    with pytest.raises(error):
        reader.feed(data)
        reader.single()


def test_errors_are_trailers_in_plain_ascii() -> None:
    block = error_trailers(Unavailable("voll: 100 % — später\n"), alone=True)
    fields: dict[Any, Any] = dict(Decoder().decode(block))
    assert fields == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "14",
        "grpc-message": "voll: 100 %25 %E2%80%94 sp%C3%A4ter%0A",
        "retry-after": "1",
    }
