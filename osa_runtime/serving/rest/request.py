"""A REST inference request: a JSON object, and after it the tensors that travel as raw bytes."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec import Raw

from osa_runtime.serving.engine.limits import LARGE
from osa_runtime.serving.engine.messages import Array, InferenceRequest, Parameter, RequestedOutput
from osa_runtime.serving.protocol.requests import (
    MAX_TENSORS,
    CheckShapes,
    accepted_encoding,
    check_count,
    check_id,
    check_input,
    check_rest,
    check_shape,
    decompress,
    requested_outputs,
)
from osa_runtime.serving.protocol.tensors import NUMPY_NAMES, read_binary_tensor
from osa_runtime.serving.refusals import LONGEST_NAME, BadRequest, shown
from osa_runtime.serving.rest.json_tensors import read_json_tensor
from osa_runtime.serving.settings import Limits

TARGET = re.compile(rb"/v2/models/([^/?#]{1,400})(?:/versions/([^/?#]{1,40}))?/infer")
REMEMBERED = 256  # layouts
SHORT = 4096  # bytes of a JSON part that is worth remembering
ABSENT = Raw()
Parameters = dict[str, bool | int | float | str]
T = TypeVar("T")


class Tensor(msgspec.Struct):
    """An entry of inputs or outputs; ``data`` is the text of its values."""

    name: str
    datatype: Any = None
    shape: Any = None
    parameters: Parameters | None = None
    data: Raw = ABSENT


class _Body(msgspec.Struct):
    inputs: list[Tensor]
    outputs: list[Tensor] | None = None
    id: str | None = None
    parameters: Parameters | None = None


class _Values(msgspec.Struct):
    data: Raw = ABSENT


class _Outline(msgspec.Struct):
    inputs: list[_Values]


BODY, OUTLINE = msgspec.json.Decoder(_Body), msgspec.json.Decoder(_Outline)


@dataclass(slots=True, frozen=True)
class RequestHead:
    """The properties of the body and the answer that target and headers determine."""

    model: str
    version: str
    json_size: str | None  # as the header has it; the rest of the body are raw tensors
    encoding: str | None  # in small letters
    answer_encoding: str | None
    trace: str  # the caller's traceparent

    @property
    def is_packed(self) -> bool:
        return bool(self.encoding) and self.encoding != "identity"


@dataclass(slots=True, frozen=True)
class Layout:
    """All but the raw bytes of a request. Shared by requests with the same JSON part, so it is never changed."""

    inputs: list[Tensor]
    outputs: list[RequestedOutput]
    id: str
    parameters: dict[str, Parameter]
    binary: bool  # how outputs travel that the request does not name


def read_head(target: bytes, headers: Mapping[bytes, bytes]) -> RequestHead:
    match = TARGET.fullmatch(target)
    if match is None:
        raise BadRequest("The path is not that of an inference request.")
    name, version = match.groups()
    accepts = headers.get(b"accept-encoding")
    return RequestHead(
        unquote(name.decode("latin-1")),
        version.decode("latin-1") if version else "",
        _text(headers.get(b"inference-header-content-length")),
        (_text(headers.get(b"content-encoding")) or "").lower(),
        accepted_encoding(accepts.decode("latin-1")) if accepts else None,
        _text(headers.get(b"traceparent")) or "",
    )


def _text(value: bytes | None) -> str | None:
    return value.decode("latin-1") if value is not None else None


def read_request(
    head: RequestHead, body: bytes | bytearray, limits: Limits, check: CheckShapes = lambda _: None
) -> InferenceRequest:
    """``check`` refuses shapes that the model does not take, before their values are read."""
    if head.is_packed:
        body = decompress(body, str(head.encoding), limits.body)
    size = len(body) if head.json_size is None else _header_length(head.json_size, len(body))
    if size == len(body):
        layout = read_layout(body, limits.tensor)
    else:
        layout = (remembered_layout if size <= SHORT else read_layout)(bytes(body[:size]), limits.tensor)
    check({entry.name: (NUMPY_NAMES[entry.datatype], entry.shape) for entry in layout.inputs})
    inputs = _read_tensors(layout, body, size)
    return InferenceRequest(
        head.model, head.version, inputs, layout.outputs, layout.id, layout.parameters, layout.binary, head.trace
    )


def _header_length(text: str, size: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) > size:
        raise BadRequest(
            f"Inference-Header-Content-Length is {text[:40]!r}, expected a number of bytes up to the body's {size}."
        )
    return int(text)


def _read_tensors(layout: Layout, body: bytes | bytearray, start: int) -> dict[str, Array]:
    inputs: dict[str, Array] = {}
    for entry in layout.inputs:
        name, size = entry.name, _binary_size(entry)
        if size is None:
            inputs[name] = read_json_tensor(name, memoryview(entry.data), entry.datatype, entry.shape)
            continue
        if start + size > len(body):
            raise BadRequest(
                f"Input {name} names {shown(size)} bytes of binary data; the body has {len(body) - start} left."
            )
        inputs[name] = read_binary_tensor(name, body, entry.datatype, entry.shape, start, size)
        start += size
    if start != len(body):
        raise BadRequest(f"The body has {len(body) - start} bytes after its last tensor, expected none.")
    return inputs


def _binary_size(entry: Tensor) -> int | None:
    """The number of raw bytes behind the JSON part; None when the values are in the JSON."""
    name, size = entry.name, (entry.parameters or {}).get("binary_data_size")
    if size is None:
        if entry.data is ABSENT:
            raise BadRequest(f"Input {name} has neither data nor the parameter binary_data_size.")
        return None
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise BadRequest(f"binary_data_size of input {name} is {shown(size)}, expected a whole number of at least 0.")
    if entry.data is not ABSENT:
        raise BadRequest(f"Input {name} has both data and binary_data_size; give one of them.")
    return size


def read_layout(text: bytes | bytearray, max_bytes: int) -> Layout:
    body = _read_body(text)
    parameters = body.parameters or {}
    binary = parameters.get("binary_data_output") is True
    check_count(len(body.inputs), "inputs")
    names: set[str] = set()
    for entry in body.inputs:
        entry.name = entry.name[:LONGEST_NAME]
        check_input(entry.name, entry.parameters or {}, names)
        entry.shape = check_shape(entry.name, entry.shape, entry.datatype, max_bytes)
        names.add(entry.name)

    def read_output(item: Tensor) -> tuple[str, Parameters, bool]:
        named = item.parameters or {}
        return item.name, named, named.get("binary_data", binary) is True

    outputs = requested_outputs(body.outputs or [], read_output)
    return Layout(body.inputs, outputs, check_id(body.id or ""), parameters, binary)


# Clients that send raw tensors of one shape send the same JSON part again and again.
remembered_layout = functools.lru_cache(REMEMBERED)(read_layout)


def _read_body(text: bytes | bytearray) -> _Body:
    """The parsed body. Objects take many times the size of their text, so all but the values is measured first."""
    if text.count(b"{") > 4 * MAX_TENSORS:
        raise BadRequest(f"The body has more than {4 * MAX_TENSORS} objects; expected at most {MAX_TENSORS} tensors.")
    if len(text) > LARGE:
        values = [memoryview(entry.data) for entry in decode_json(OUTLINE, text).inputs]
        check_rest(len(text) - sum(map(len, values)))
    return decode_json(BODY, text)


def decode_json(decoder: msgspec.json.Decoder[T], text: bytes | bytearray) -> T:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise BadRequest(f"The body does not fit the protocol: {error}.") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # not ValueErrors before msgspec 0.21
        raise BadRequest(f"The body is not valid JSON: {error}.") from error
