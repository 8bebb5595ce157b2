"""A gRPC inference request, with tensors as raw bytes or as the typed lists of the protocol, and its answer with raw
bytes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from osa_runtime.serving.engine.messages import Array, InferenceRequest, InferenceResponse, Parameter, RequestedOutput
from osa_runtime.serving.protocol.request_checks import (
    CheckShapes,
    check_count,
    check_id,
    check_input,
    check_output,
    check_outputs,
    check_shape,
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
from osa_runtime.serving.refusals import LONGEST_NAME, BadRequest

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
STEP = 1 << 16  # values that are read at a time: meanwhile no other thread runs


def read_grpc_request(message: Any, max_bytes: int, check: CheckShapes = lambda _: None) -> InferenceRequest:
    """``check`` refuses shapes that the model does not take, before their values are read."""
    check_id(message.id)
    shapes = _read_shapes(message, max_bytes)
    check({name: (NUMPY_NAMES[tensor.datatype], shape) for name, (tensor, shape) in shapes.items()})
    return InferenceRequest(
        message.model_name,
        message.model_version,
        _read_values(shapes, message.raw_input_contents),
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


def _read_shapes(message: Any, max_bytes: int) -> dict[str, tuple[Any, tuple[int, ...]]]:
    check_count(len(message.inputs), "inputs")
    raw = len(message.raw_input_contents)
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


def _read_values(shapes: dict[str, tuple[Any, tuple[int, ...]]], raw: Any) -> dict[str, Array]:
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


def _read_outputs(items: Any) -> list[RequestedOutput]:
    check_count(len(items), "outputs")
    outputs = [_read_output(item) for item in items]
    check_outputs(outputs)
    return outputs


def _read_output(output: Any) -> RequestedOutput:
    parameters = read_grpc_parameters(output.parameters) if output.parameters else {}
    return check_output(output.name[:LONGEST_NAME], parameters, binary=True)


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
