"""A gRPC inference request: tensors as raw bytes, or as the typed lists of the protocol."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from osa_runtime.serving.binary_tensors import read_binary_tensor
from osa_runtime.serving.datatypes import NUMPY_NAMES
from osa_runtime.serving.json_tensors import read_shape
from osa_runtime.serving.messages import Array, InferenceRequest, Parameter, RequestedOutput
from osa_runtime.serving.refusals import BadRequest
from osa_runtime.serving.rest_request import MAX_TENSORS, read_class_count

FIELDS = {  # where values of a type travel, and as what
    "BOOL": ("bool_contents", "bool"),
    "INT8": ("int_contents", "int32"),
    "INT16": ("int_contents", "int32"),
    "INT32": ("int_contents", "int32"),
    "INT64": ("int64_contents", "int64"),
    "UINT8": ("uint_contents", "uint32"),
    "FP32": ("fp32_contents", "float32"),
    "FP64": ("fp64_contents", "float64"),
}
LONGEST_NAME = 200  # characters; what is longer is cut before anything is done with it
LONGEST_ID = 1024
STEP = 1 << 16  # values that are read at a time: meanwhile no other thread runs


def read_grpc_request(message: Any, max_bytes: int) -> InferenceRequest:
    if len(message.id) > LONGEST_ID:
        raise BadRequest(f"The id has {len(message.id)} characters, expected at most {LONGEST_ID}.")
    return InferenceRequest(
        message.model_name,
        message.model_version,
        _read_inputs(message, max_bytes),
        _read_outputs(message.outputs),
        message.id,
        read_grpc_parameters(message.parameters) if message.parameters else {},
    )


def read_grpc_parameters(parameters: Any) -> dict[str, Parameter]:
    found: dict[str, Parameter] = {}
    for name, value in parameters.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is None:
            raise BadRequest(f"The parameter {name[:LONGEST_NAME]} has no value.")
        found[name] = getattr(value, choice)
    return found


def _read_inputs(message: Any, max_bytes: int) -> dict[str, Array]:
    raw = message.raw_input_contents
    if len(message.inputs) > MAX_TENSORS:
        raise BadRequest(f"The request has {len(message.inputs)} inputs, expected at most {MAX_TENSORS}.")
    if raw and len(raw) != len(message.inputs):
        raise BadRequest(
            f"There are {len(raw)} raw_input_contents, expected one for each of {len(message.inputs)} inputs."
        )
    inputs: dict[str, Array] = {}
    for index, tensor in enumerate(message.inputs):
        name = tensor.name[:LONGEST_NAME]
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


def _read_outputs(items: Any) -> list[RequestedOutput]:
    if len(items) > MAX_TENSORS:
        raise BadRequest(f"The request names {len(items)} outputs, expected at most {MAX_TENSORS}.")
    outputs = [_read_output(item) for item in items]
    if len({output.name for output in outputs}) != len(outputs):
        raise BadRequest("outputs names an output twice; name each once.")
    return outputs


def _read_output(output: Any) -> RequestedOutput:
    name = output.name[:LONGEST_NAME]
    parameters = read_grpc_parameters(output.parameters) if output.parameters else {}
    if "shared_memory_region" in parameters:
        raise BadRequest(f"Output {name} is wanted in shared memory, which this server does not have.")
    return RequestedOutput(name, True, read_class_count(name, parameters))
