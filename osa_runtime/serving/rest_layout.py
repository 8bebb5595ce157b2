"""The JSON part of a REST inference request: what is asked for, and how the tensors travel."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import orjson

from osa_runtime.serving.json_tensors import read_shape
from osa_runtime.serving.messages import Parameter, RequestedOutput
from osa_runtime.serving.refusals import BadRequest

MAX_TENSORS = 1000
SCALARS = frozenset({bool, int, float, str})
REMEMBERED = 256  # layouts
SHORT = 4096  # bytes of a JSON part that is worth remembering


@dataclass(slots=True, frozen=True)
class InputEntry:
    """``size`` counts the raw bytes behind the JSON part; None when ``data`` has the values."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int | None
    data: Any


@dataclass(slots=True, frozen=True)
class Layout:
    """All but the raw bytes of a request. Shared by requests with the same JSON part: nobody changes it."""

    inputs: tuple[InputEntry, ...]
    outputs: list[RequestedOutput]
    id: str
    parameters: dict[str, Parameter]
    binary: bool  # how outputs travel that the request does not name


def read_layout(text: bytes, max_bytes: int) -> Layout:
    fields = read_object(text)
    parameters = read_parameters(fields.get("parameters"))
    binary = parameters.get("binary_data_output") is True
    inputs = _read_inputs(fields.get("inputs"), max_bytes)
    outputs = _read_outputs(fields.get("outputs"), binary)
    return Layout(inputs, outputs, _read_id(fields.get("id", "")), parameters, binary)


# Clients that send raw tensors of one shape send the same JSON part again and again.
remembered_layout = functools.lru_cache(REMEMBERED)(read_layout)


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


def _read_id(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 1024:
        raise BadRequest("id must be a string of at most 1024 characters.")
    return value


def _read_inputs(items: Any, max_bytes: int) -> tuple[InputEntry, ...]:
    inputs: dict[str, InputEntry] = {}
    for item in _objects(items, "inputs"):
        name = _name(item, "inputs")
        if name in inputs:
            raise BadRequest(f"Input {name} is given twice; give each input once.")
        shape = read_shape(name, item.get("shape"), item.get("datatype"), max_bytes)
        size = _binary_size(name, item)
        if size is None and "data" not in item:
            raise BadRequest(f"Input {name} has neither data nor the parameter binary_data_size.")
        inputs[name] = InputEntry(name, item["datatype"], shape, size, item.get("data"))
    return tuple(inputs.values())


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
