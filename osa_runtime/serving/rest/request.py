"""A REST inference request: a JSON object, and after it the tensors that travel as raw bytes."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Raw

from osa_runtime.serving.engine.messages import Array, InferenceRequest, Parameter, RequestedOutput
from osa_runtime.serving.protocol.json_tensors import read_json_tensor
from osa_runtime.serving.protocol.requests import (
    MAX_TENSORS,
    CheckShapes,
    accepted_encoding,
    check_count,
    check_id,
    check_input,
    check_output,
    check_outputs,
    check_shape,
    decompress,
)
from osa_runtime.serving.protocol.tensors import NUMPY_NAMES, read_binary_tensor
from osa_runtime.serving.refusals import LONGEST_NAME, BadRequest, shown
from osa_runtime.serving.settings import Limits

TARGET = re.compile(rb"/v2/models/([^/?#]{1,400})(?:/versions/([^/?#]{1,40}))?/infer")
LONGEST = 16 << 10  # bytes of a name, a shape or parameters, as JSON
REMEMBERED = 256  # layouts
SHORT = 4096  # bytes of a JSON part that is worth remembering
ABSENT = Raw()


class _Tensor(msgspec.Struct):
    """An entry of inputs or outputs. Nothing is read before its length has been looked at."""

    name: Raw = ABSENT
    datatype: Raw = ABSENT
    shape: Raw = ABSENT
    parameters: Raw = ABSENT
    data: Raw = ABSENT


class _Body(msgspec.Struct):
    inputs: list[_Tensor] | None = None
    outputs: list[_Tensor] | None = None
    id: Raw = ABSENT
    parameters: Raw = ABSENT


BODY = msgspec.json.Decoder(_Body)
ANYTHING = msgspec.json.Decoder()
PARAMETERS: msgspec.json.Decoder[Any] = msgspec.json.Decoder(dict[str, bool | int | float | str] | None)


@dataclass(slots=True, frozen=True)
class RequestHead:
    """Everything that target and headers say about the body and the answer."""

    model: str
    version: str
    json_size: str | None  # as the header has it; the rest of the body are raw tensors
    encoding: str | None
    answer_encoding: str | None
    trace: str  # the caller's traceparent

    @property
    def is_packed(self) -> bool:
        return bool(self.encoding) and self.encoding != "identity"


@dataclass(slots=True, frozen=True)
class InputEntry:
    """``size`` counts the raw bytes behind the JSON part; None when ``data`` is the text of the values."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int | None
    data: Raw


@dataclass(slots=True, frozen=True)
class Layout:
    """All but the raw bytes of a request. Shared by requests with the same JSON part, so it is never changed."""

    inputs: tuple[InputEntry, ...]
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
        _text(headers.get(b"content-encoding")),
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
        name, size = entry.name, entry.size
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


def read_layout(text: bytes | bytearray, max_bytes: int) -> Layout:
    fields = _read_body(text)
    parameters = _read_parameters(fields.parameters)
    binary = parameters.get("binary_data_output") is True
    inputs = _read_inputs(fields.inputs, max_bytes)
    outputs = _read_outputs(fields.outputs, binary)
    return Layout(inputs, outputs, _read_id(fields.id), parameters, binary)


# Clients that send raw tensors of one shape send the same JSON part again and again.
remembered_layout = functools.lru_cache(REMEMBERED)(read_layout)


def _read_body(text: bytes | bytearray) -> _Body:
    if text.count(b"{") > 4 * MAX_TENSORS:
        raise BadRequest(f"The body has more than {4 * MAX_TENSORS} objects; expected at most {MAX_TENSORS} tensors.")
    try:
        return BODY.decode(text)
    except msgspec.ValidationError as error:
        for where in ("inputs", "outputs"):
            if f"$.{where}" in str(error):
                raise BadRequest(f"{where} must be a list of objects: {error}.") from error
        raise BadRequest(f"The body is JSON of another type: {error}; expected an object.") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # not ValueErrors before msgspec 0.21
        raise BadRequest(f"The body is not valid JSON: {error}.") from error


def _value(raw: Raw, what: str, decoder: msgspec.json.Decoder[Any] = ANYTHING) -> Any:
    """The value of a short text; None when it is absent."""
    if raw is ABSENT:
        return None
    size = len(memoryview(raw))
    if size > LONGEST:
        raise BadRequest(f"{what} takes {size} bytes, expected at most {LONGEST}.")
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{what} must be an object of strings, numbers, true and false.") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # not ValueErrors before msgspec 0.21
        raise BadRequest(f"{what} is not valid JSON: {error}.") from error


def _read_parameters(raw: Raw) -> dict[str, Parameter]:
    return _value(raw, "parameters", PARAMETERS) or {}


def _read_id(raw: Raw) -> str:
    value = _value(raw, "id")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadRequest(f"The id is {shown(value)}, expected a string.")
    return check_id(value)


def _read_inputs(items: list[_Tensor] | None, max_bytes: int) -> tuple[InputEntry, ...]:
    inputs: dict[str, InputEntry] = {}
    for item in _entries(items, "inputs"):
        name = _name(item, "inputs")
        parameters = _read_parameters(item.parameters)
        check_input(name, parameters, inputs)
        datatype = _value(item.datatype, f"The datatype of input {name}")
        shape = check_shape(name, _value(item.shape, f"The shape of input {name}"), datatype, max_bytes)
        size = _binary_size(name, item, parameters)
        if size is None and item.data is ABSENT:
            raise BadRequest(f"Input {name} has neither data nor the parameter binary_data_size.")
        inputs[name] = InputEntry(name, datatype, shape, size, item.data)
    return tuple(inputs.values())


def _binary_size(name: str, item: _Tensor, parameters: Mapping[str, Parameter]) -> int | None:
    size = parameters.get("binary_data_size")
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise BadRequest(f"binary_data_size of input {name} is {shown(size)}, expected a whole number of at least 0.")
    if item.data is not ABSENT:
        raise BadRequest(f"Input {name} has both data and binary_data_size; give one of them.")
    return size


def _read_outputs(items: list[_Tensor] | None, binary: bool) -> list[RequestedOutput]:
    if items is None:
        return []
    outputs = [_read_output(item, binary) for item in _entries(items, "outputs")]
    check_outputs(outputs)
    return outputs


def _read_output(item: _Tensor, binary: bool) -> RequestedOutput:
    name = _name(item, "outputs")
    parameters = _read_parameters(item.parameters)
    return check_output(name, parameters, binary=parameters.get("binary_data", binary) is True)


def _entries(items: list[_Tensor] | None, where: str) -> list[_Tensor]:
    if items is None:
        raise BadRequest(f"{where} must be a list of objects.")
    check_count(len(items), where)
    return items


def _name(item: _Tensor, where: str) -> str:
    name = _value(item.name, f"A name in {where}")
    if not isinstance(name, str) or not name:
        raise BadRequest(f"An entry of {where} has no name; expected a string.")
    return name[:LONGEST_NAME]
