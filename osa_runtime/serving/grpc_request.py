"""A gRPC inference request: tensors as raw bytes, or as the typed lists of the protocol."""

from __future__ import annotations

from typing import Any

import numpy as np

from osa_runtime.serving.binary_tensors import read_binary_tensor
from osa_runtime.serving.datatypes import NUMPY_NAMES
from osa_runtime.serving.json_tensors import read_json_tensor, read_shape
from osa_runtime.serving.messages import Array, InferenceRequest, Parameter, RequestedOutput
from osa_runtime.serving.refusals import BadRequest
from osa_runtime.serving.rest_layout import read_class_count

FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


def read_grpc_request(message: Any, max_bytes: int) -> InferenceRequest:
    return InferenceRequest(
        message.model_name,
        message.model_version,
        _read_inputs(message, max_bytes),
        [_read_output(output) for output in message.outputs],
        message.id,
        read_grpc_parameters(message.parameters) if message.parameters else {},
    )


def read_grpc_parameters(parameters: Any) -> dict[str, Parameter]:
    found: dict[str, Parameter] = {}
    for name, value in parameters.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is None:
            raise BadRequest(f"The parameter {name} has no value.")
        found[name] = getattr(value, choice)
    return found


def _read_inputs(message: Any, max_bytes: int) -> dict[str, Array]:
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise BadRequest(
            f"There are {len(raw)} raw_input_contents, expected one for each of {len(message.inputs)} inputs."
        )
    inputs: dict[str, Array] = {}
    for index, tensor in enumerate(message.inputs):
        name = tensor.name
        if name in inputs:
            raise BadRequest(f"Input {name} is given twice; give each input once.")
        if tensor.parameters and "shared_memory_region" in tensor.parameters:
            raise BadRequest(f"Input {name} lies in shared memory, which this server does not have; send it as bytes.")
        shape = read_shape(name, list(tensor.shape), tensor.datatype, max_bytes)
        if raw:
            if tensor.HasField("contents"):
                raise BadRequest(f"Input {name} has contents although the request has raw_input_contents.")
            inputs[name] = read_binary_tensor(name, raw[index], tensor.datatype, shape)
        else:
            inputs[name] = _read_contents(name, tensor, shape)
    return inputs


def _read_contents(name: str, tensor: Any, shape: tuple[int, ...]) -> Array:
    field = FIELDS.get(tensor.datatype)
    if field is None:
        raise BadRequest(f"Input {name} of type {tensor.datatype} must be sent in raw_input_contents.")
    values = getattr(tensor.contents, field)
    if field in ("fp32_contents", "fp64_contents"):
        # lists of floats may hold NaN and Inf, which JSON cannot
        return _floats(name, values, tensor.datatype, shape)
    return read_json_tensor(name, list(values), tensor.datatype, shape)


def _floats(name: str, values: Any, datatype: str, shape: tuple[int, ...]) -> Array:
    array = np.array(values, NUMPY_NAMES[datatype])
    if array.size != np.prod(shape, dtype=np.int64):
        raise BadRequest(f"Input {name} has {array.size} values, which do not fill the shape {list(shape)}.")
    return array.reshape(shape)


def _read_output(output: Any) -> RequestedOutput:
    parameters = read_grpc_parameters(output.parameters) if output.parameters else {}
    if "shared_memory_region" in parameters:
        raise BadRequest(f"Output {output.name} is wanted in shared memory, which this server does not have.")
    return RequestedOutput(output.name, True, read_class_count(output.name, parameters))
