"""gRPC messages: untrusted bytes as protobuf objects; an inference request and its answer.

The parser makes an object of 70 bytes out of a field of 2, so that a message of the largest size could take gigabytes.
In large ones, all but the values of tensors is therefore measured first; and their raw tensors stay where they are,
since the parser would copy them while no other thread runs. Tensors come as raw bytes or as the typed lists of the
protocol, and are answered as raw bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from osa_runtime.serving.engine.limits import LARGE
from osa_runtime.serving.engine.messages import Array, InferenceRequest, InferenceResponse, Parameter
from osa_runtime.serving.protocol.requests import (
    CheckShapes,
    check_count,
    check_id,
    check_input,
    check_rest,
    check_shape,
    decompress,
    requested_outputs,
)
from osa_runtime.serving.protocol.tensors import (
    BYTES,
    NAME_OF_DTYPE,
    NUMPY_NAMES,
    classify,
    read_binary_tensor,
    write_binary_tensor,
    write_byte_strings,
)
from osa_runtime.serving.refusals import LONGEST_NAME, BadRequest, TooLarge

TYPED = 8 << 20  # bytes of values that are not raw; as objects they take up to 8 times as much
# The first bytes of packed messages. No message of the protocol starts with them: they are not tags of its fields.
ENCODINGS = {b"\x1f\x8b": "gzip"} | dict.fromkeys((b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"), "deflate")
VARINT, FIXED64, WITH_LENGTH, FIXED32 = 0, 1, 2, 5  # wire types
REQUEST, CONTENTS = pb.ModelInferRequest.DESCRIPTOR, pb.InferTensorContents.DESCRIPTOR
RAW = REQUEST.fields_by_name["raw_input_contents"].number << 3 | WITH_LENGTH  # a tag


Buffer = bytes | memoryview


def is_packed(content: bytes) -> bool:
    return content[:2] in ENCODINGS


def parse_message(kind: Any, content: bytes, limit: int) -> Any:
    """A message of this kind; ``limit`` is what it may unpack to, in bytes."""
    return _parse(kind, _unpack(content, limit))


def parse_request(content: bytes, limit: int) -> tuple[Any, Sequence[Buffer]]:
    """A ModelInferRequest and its raw tensors; those of a large one are views of ``content``."""
    content = _unpack(content, limit)
    if len(content) <= LARGE:
        message = _parse(pb.ModelInferRequest, content)
        return message, message.raw_input_contents
    parts = Parts(content)
    parts.measure(REQUEST, 0, len(content))
    return _parse(pb.ModelInferRequest, parts.without_raw()), parts.raw


def _unpack(content: bytes, limit: int) -> bytes:
    return decompress(content, ENCODINGS[content[:2]], limit) if is_packed(content) else content


def _parse(kind: Any, content: bytes) -> Any:
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise BadRequest(f"The message is not a valid {kind.DESCRIPTOR.name}: {error}.") from error


class Parts:
    """Counts bytes on the way through a message, and raises at the limits; ``raw`` are the raw tensors found so far."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._rest = self._typed = 0
        self._kept, self._kept_to = b"", 0
        self.raw: list[Buffer] = []

    def without_raw(self) -> bytes:
        return self._kept + self._content[self._kept_to :]

    def measure(self, kind: Descriptor, at: int, end: int) -> None:
        while at < end:
            begin = at
            tag, at = self._varint(at)
            number = tag >> 3
            size, at = self._size(tag & 7, at)
            self._rest += at - begin
            field = kind.fields_by_number.get(number)
            if at + size > end:
                raise BadRequest("The message is cut short.")
            if field is not None and field.message_type is not None:
                self.measure(field.message_type, at, at + size)
            elif kind is CONTENTS and field is not None:
                self._typed += size
            elif kind is REQUEST and tag == RAW:
                self._kept += self._content[self._kept_to : begin]
                self._kept_to = at + size
                self.raw.append(memoryview(self._content)[at : at + size])
                check_count(len(self.raw), "raw_input_contents")
            else:
                self._rest += size
            check_rest(self._rest)
            if self._typed > TYPED:
                raise TooLarge(f"Typed contents take more than {TYPED} bytes; send such tensors in raw_input_contents.")
            at += size

    def _size(self, wire: int, at: int) -> tuple[int, int]:
        """The size of a field's content, and where it begins."""
        if wire == WITH_LENGTH:
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


FIELDS = {  # the field and the type that carry values of each data type
    "BOOL": ("bool_contents", "bool"),
    "INT8": ("int_contents", "int32"),
    "INT16": ("int_contents", "int32"),
    "INT32": ("int_contents", "int32"),
    "INT64": ("int64_contents", "int64"),
    "UINT8": ("uint_contents", "uint32"),
    "FP32": ("fp32_contents", "float32"),
    "FP64": ("fp64_contents", "float64"),
}
STEP = 1 << 16  # values that are read at a time: meanwhile no other thread runs


def read_grpc_request(
    message: Any, raw: Sequence[Buffer], max_bytes: int, check: CheckShapes = lambda _: None
) -> InferenceRequest:
    """``raw`` are its raw tensors. ``check`` refuses shapes that the model does not take, before values are read."""
    check_id(message.id)
    shapes = _read_shapes(message, len(raw), max_bytes)
    check({name: (NUMPY_NAMES[tensor.datatype], shape) for name, (tensor, shape) in shapes.items()})
    return InferenceRequest(
        message.model_name,
        message.model_version,
        _read_values(shapes, raw),
        requested_outputs(message.outputs, lambda output: (output.name, _parameters(output), True)),
        message.id,
        _parameters(message),
    )


def read_grpc_parameters(parameters: Any) -> dict[str, Parameter]:
    found: dict[str, Parameter] = {}
    for name, value in parameters.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is None:
            raise BadRequest(f"The parameter {name[:LONGEST_NAME]} has no value.")
        found[name] = getattr(value, choice)
    return found


def _parameters(part: Any) -> dict[str, Parameter]:
    return read_grpc_parameters(part.parameters) if part.parameters else {}


def _read_shapes(message: Any, raw: int, max_bytes: int) -> dict[str, tuple[Any, tuple[int, ...]]]:
    check_count(len(message.inputs), "inputs")
    if raw and raw != len(message.inputs):
        raise BadRequest(f"There are {raw} raw_input_contents, expected one for each of {len(message.inputs)} inputs.")
    shapes: dict[str, tuple[Any, tuple[int, ...]]] = {}
    for tensor in message.inputs:
        name = tensor.name[:LONGEST_NAME]
        check_input(name, tensor.parameters, shapes)
        shapes[name] = tensor, check_shape(name, list(tensor.shape), tensor.datatype, max_bytes)
        if raw and tensor.HasField("contents"):
            raise BadRequest(f"Input {name} has contents although the request has raw_input_contents.")
    return shapes


def _read_values(shapes: dict[str, tuple[Any, tuple[int, ...]]], raw: Sequence[Buffer]) -> dict[str, Array]:
    return {
        name: read_binary_tensor(name, raw[index], tensor.datatype, shape)
        if raw
        else _read_contents(name, tensor, shape)
        for index, (name, (tensor, shape)) in enumerate(shapes.items())
    }


def _read_contents(name: str, tensor: Any, shape: tuple[int, ...]) -> Array:
    if tensor.datatype not in FIELDS:
        raise BadRequest(f"Input {name} of type {tensor.datatype} must be sent in raw_input_contents.")
    field, sent_as = FIELDS[tensor.datatype]
    values, count = getattr(tensor.contents, field), math.prod(shape)
    if len(values) != count:
        raise BadRequest(f"Input {name} has {len(values)} values, expected {count} for the shape {list(shape)}.")
    sent = np.empty(count, sent_as)
    for start in range(0, count, STEP):
        sent[start : start + STEP] = values[start : start + STEP]
    array = sent.astype(NUMPY_NAMES[tensor.datatype], copy=False)
    if array is not sent and not np.array_equal(array, sent):
        raise BadRequest(f"Input {name} holds values outside the range of {tensor.datatype}.")
    return array.reshape(shape)


def write_grpc_response(request: InferenceRequest, response: InferenceResponse) -> Any:
    """A ModelInferResponse."""
    message = pb.ModelInferResponse(model_name=response.model, model_version=response.version, id=response.id)
    for name, classes in [(o.name, o.classes) for o in request.outputs] or [(name, 0) for name in response.outputs]:
        array = response.outputs[name]
        if classes:
            array = classify(name, array, classes, response.class_names)
        message.outputs.add(name=name, datatype=NAME_OF_DTYPE.get(array.dtype, BYTES), shape=array.shape)
        message.raw_output_contents.append(write_byte_strings(array) if classes else write_binary_tensor(array))
    return message
