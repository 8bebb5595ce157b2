"""The bytes of gRPC messages as protobuf objects, whatever they hold.

The parser makes an object of 70 bytes out of a field of 2, so that a message of the largest size could take gigabytes.
In large ones, all but the values of tensors is therefore measured first.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from osa_runtime.serving.engine.large_requests import LARGE
from osa_runtime.serving.protocol.compression import decompress
from osa_runtime.serving.refusals import BadRequest, TooLarge

TYPED = 8 << 20  # bytes of values that are not raw; as objects they take up to 8 times as much
# How packed messages begin. No message of the protocol begins so: as tags these bytes are no fields of it.
ENCODINGS = {b"\x1f\x8b": "gzip"} | dict.fromkeys((b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"), "deflate")
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
REQUEST, CONTENTS = pb.ModelInferRequest.DESCRIPTOR, pb.InferTensorContents.DESCRIPTOR
RAW = REQUEST.fields_by_name["raw_input_contents"].number


def is_packed(content: bytes) -> bool:
    return content[:2] in ENCODINGS


def parse_message(kind: Any, content: bytes, limit: int) -> Any:
    """A message of this kind; ``limit`` is what it may unpack to, in bytes."""
    if is_packed(content):
        content = decompress(content, ENCODINGS[content[:2]], limit)
    if len(content) > LARGE:
        Parts(content).measure(kind.DESCRIPTOR, 0, len(content))
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise BadRequest(f"The message is not a valid {kind.DESCRIPTOR.name}: {error}.") from error


class Parts:
    """Counts what is left of the two limits on the way through a message, and raises when one is used up."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._rest, self._typed = LARGE, TYPED

    def measure(self, kind: Descriptor, at: int, end: int) -> None:
        while at < end:
            begin = at
            tag, at = self._varint(at)
            number = tag >> 3
            size, at = self._size(tag & 7, at)
            self._rest -= at - begin
            field = kind.fields_by_number.get(number)
            if at + size > end:
                raise BadRequest("The message is cut short.")
            if field is not None and field.message_type is not None:
                self.measure(field.message_type, at, at + size)
            elif kind is CONTENTS and field is not None:
                self._typed -= size
            elif kind is not REQUEST or number != RAW:
                self._rest -= size
            self._check()
            at += size

    def _size(self, wire: int, at: int) -> tuple[int, int]:
        """The size of a field's content, and where it begins."""
        if wire == BYTES:
            return self._varint(at)
        if wire == VARINT:
            return 0, self._varint(at)[1]
        if wire in (FIXED64, FIXED32):
            return 8 if wire == FIXED64 else 4, at
        raise BadRequest(f"The message has a field of the wire type {wire}, which the protocol does not use.")

    def _varint(self, at: int) -> tuple[int, int]:
        """Seven bits a byte, the lowest first; the eighth says that more follow."""
        number = 0
        for shift, byte in zip(range(0, 70, 7), self._content[at : at + 10], strict=False):
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number, at + shift // 7 + 1
        raise BadRequest("The message holds a number that is cut short or too long.")

    def _check(self) -> None:
        if self._rest < 0:
            raise TooLarge(f"Names, shapes and parameters take more than {LARGE} bytes of the message.")
        if self._typed < 0:
            raise TooLarge(f"Typed contents take more than {TYPED} bytes; send such tensors in raw_input_contents.")
