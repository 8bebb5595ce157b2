"""A REST inference request: a JSON object, and after it the tensors that travel as raw bytes."""

from __future__ import annotations

from typing import Any

import orjson

from osa_runtime.serving.binary_tensors import read_binary_tensor
from osa_runtime.serving.compression import decompress
from osa_runtime.serving.json_tensors import read_json_tensor, read_shape
from osa_runtime.serving.messages import Array, InferenceRequest, Parameter, RequestedOutput
from osa_runtime.serving.refusals import BadRequest
from osa_runtime.serving.settings import Limits

MAX_TENSORS = 1000
SCALARS = frozenset({bool, int, float, str})


def read_request(
    model: str, version: str, body: bytes, header_length: str | None, encoding: str | None, limits: Limits
) -> InferenceRequest:
    if encoding and encoding != "identity":
        body = decompress(body, encoding, limits.body)
    json_size = len(body) if header_length is None else _header_length(header_length, len(body))
    fields = read_object(body[:json_size])
    parameters = read_parameters(fields.get("parameters"))
    binary = parameters.get("binary_data_output") is True
    return InferenceRequest(
        model,
        version,
        _read_inputs(fields.get("inputs"), body, json_size, limits.tensor),
        _read_outputs(fields.get("outputs"), binary),
        _read_id(fields.get("id", "")),
        parameters,
        binary,
    )


def read_object(text: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.") from error
    if not isinstance(fields, dict):
        raise BadRequest(f"The body is JSON of type {type(fields).__name__}, expected an object.")
    return fields


def read_parameters(value: Any) -> dict[str, Parameter]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not SCALARS.issuperset(map(type, value.values())):
        raise BadRequest("parameters must be an object of strings, numbers, true and false.")
    return value


def _header_length(text: str, size: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) > size:
        raise BadRequest(
            f"Inference-Header-Content-Length is {text[:40]!r}, expected a number of bytes up to the body's {size}."
        )
    return int(text)


def _read_id(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 1024:
        raise BadRequest("id must be a string of at most 1024 characters.")
    return value


def _read_inputs(items: Any, body: bytes, start: int, max_bytes: int) -> dict[str, Array]:
    inputs: dict[str, Array] = {}
    for item in _objects(items, "inputs"):
        name = _name(item, "inputs")
        if name in inputs:
            raise BadRequest(f"Input {name} is given twice; give each input once.")
        shape = read_shape(name, item.get("shape"), item.get("datatype"), max_bytes)
        size = _binary_size(name, item)
        if size is None:
            if "data" not in item:
                raise BadRequest(f"Input {name} has neither data nor the parameter binary_data_size.")
            inputs[name] = read_json_tensor(name, item["data"], item["datatype"], shape)
            continue
        if start + size > len(body):
            raise BadRequest(f"Input {name} names {size} bytes of binary data; the body has {len(body) - start} left.")
        inputs[name] = read_binary_tensor(name, body, item["datatype"], shape, start, size)
        start += size
    if start != len(body):
        raise BadRequest(f"The body has {len(body) - start} bytes after its last tensor, expected none.")
    return inputs


def _binary_size(name: str, item: dict[str, Any]) -> int | None:
    parameters = read_parameters(item.get("parameters"))
    if "shared_memory_region" in parameters:
        raise BadRequest(f"Input {name} lies in shared memory, which this server does not have; send it as bytes.")
    size = parameters.get("binary_data_size")
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise BadRequest(f"binary_data_size of input {name} is {size!r}, expected a whole number of at least 0.")
    if "data" in item:
        raise BadRequest(f"Input {name} has both data and binary_data_size; give one of them.")
    return size


def _read_outputs(items: Any, binary: bool) -> list[RequestedOutput]:
    if items is None:
        return []
    outputs = [_read_output(item, binary) for item in _objects(items, "outputs")]
    if len({output.name for output in outputs}) != len(outputs):
        raise BadRequest("outputs names an output twice; name each once.")
    return outputs


def _read_output(item: dict[str, Any], binary: bool) -> RequestedOutput:
    name = _name(item, "outputs")
    parameters = read_parameters(item.get("parameters"))
    if "shared_memory_region" in parameters:
        raise BadRequest(f"Output {name} is wanted in shared memory, which this server does not have.")
    return RequestedOutput(name, parameters.get("binary_data", binary) is True, read_class_count(name, parameters))


def read_class_count(name: str, parameters: dict[str, Parameter]) -> int:
    count = parameters.get("classification", 0)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise BadRequest(f"classification of output {name} is {count!r}, expected a whole number of at least 0.")
    return count


def _objects(items: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(items, list) or len(items) > MAX_TENSORS or {*map(type, items)} - {dict}:
        raise BadRequest(f"{where} must be a list of objects.")
    return items


def _name(item: dict[str, Any], where: str) -> str:
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise BadRequest(f"An entry of {where} has no name; expected a string.")
    return name[:200]
