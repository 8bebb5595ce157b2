"""The gRPC answer to an inference request; tensors always travel as raw bytes."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2 as pb

from osa_runtime.serving.binary_tensors import write_binary_tensor
from osa_runtime.serving.classification import classify, write_byte_strings
from osa_runtime.serving.datatypes import BYTES, NAME_OF_DTYPE
from osa_runtime.serving.messages import InferenceRequest, InferenceResponse


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
