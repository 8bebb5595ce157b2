"""The gRPC answer to an inference request; tensors always travel as raw bytes."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2 as pb

from osa_runtime.serving.binary_tensors import write_binary_tensor
from osa_runtime.serving.classification import classify, write_byte_strings
from osa_runtime.serving.datatypes import BYTES, NAME_OF_DTYPE
from osa_runtime.serving.messages import InferenceRequest, InferenceResponse

Tensor = pb.ModelInferResponse.InferOutputTensor


def write_grpc_response(request: InferenceRequest, response: InferenceResponse) -> Any:
    wanted = [(o.name, o.classes) for o in request.outputs] or [(name, 0) for name in response.outputs]
    tensors, contents = [], []
    for name, classes in wanted:
        array = response.outputs[name]
        if classes:
            array = classify(name, array, classes)
            contents.append(write_byte_strings(array))
        else:
            contents.append(write_binary_tensor(array))
        tensors.append(Tensor(name=name, datatype=NAME_OF_DTYPE.get(array.dtype, BYTES), shape=array.shape))
    return pb.ModelInferResponse(
        model_name=response.model,
        model_version=response.version,
        id=response.id,
        outputs=tensors,
        raw_output_contents=contents,
    )
