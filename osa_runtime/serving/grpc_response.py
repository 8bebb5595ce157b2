"""The gRPC answer to an inference request; tensors always travel as raw bytes."""

from __future__ import annotations

import functools

from tritonclient.grpc import service_pb2 as pb

from osa_runtime.serving.binary_tensors import write_binary_tensor
from osa_runtime.serving.classification import classify, write_byte_strings
from osa_runtime.serving.datatypes import BYTES, NAME_OF_DTYPE
from osa_runtime.serving.messages import InferenceRequest, InferenceResponse

OutputEntry = tuple[str, str, tuple[int, ...]]  # name, datatype, shape

FIELDS = pb.ModelInferResponse.DESCRIPTOR.fields_by_name
ID, RAW = (bytes([FIELDS[name].number << 3 | 2]) for name in ("id", "raw_output_contents"))  # 2: bytes with their size


def write_grpc_response(request: InferenceRequest, response: InferenceResponse) -> bytes:
    """A serialized ModelInferResponse. The fields of a message may come in any order, so that what repeats is kept."""
    wanted = [(o.name, o.classes) for o in request.outputs] or [(name, 0) for name in response.outputs]
    entries: list[OutputEntry] = []
    chunks = [b""]
    if response.id:
        chunks += _field(ID, response.id.encode())
    for name, classes in wanted:
        array = response.outputs[name]
        if classes:
            array = classify(name, array, classes)
            chunks += _field(RAW, write_byte_strings(array))
        else:
            chunks += _field(RAW, write_binary_tensor(array))
        entries.append((name, NAME_OF_DTYPE.get(array.dtype, BYTES), array.shape))
    chunks[0] = _head(response.model, response.version, tuple(entries))
    return b"".join(chunks)


@functools.lru_cache(256)
def _head(model: str, version: str, entries: tuple[OutputEntry, ...]) -> bytes:
    tensor = pb.ModelInferResponse.InferOutputTensor
    outputs = [tensor(name=name, datatype=datatype, shape=shape) for name, datatype, shape in entries]
    head = pb.ModelInferResponse(model_name=model, model_version=version, outputs=outputs)
    return bytes(head.SerializeToString())


def _field(tag: bytes, content: bytes) -> tuple[bytes, bytes, bytes]:
    return tag, _varint(len(content)), content


@functools.lru_cache(256)
def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(digits) + bytes([number])
