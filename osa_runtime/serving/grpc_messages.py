"""Inference requests out of the bytes of gRPC messages, of which clients repeat all but the raw tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from osa_runtime.serving.binary_tensors import read_binary_tensor
from osa_runtime.serving.grpc_request import read_grpc_request
from osa_runtime.serving.messages import InferenceRequest, Parameter, RequestedOutput
from osa_runtime.serving.refusals import BadRequest

REMEMBERED = 16  # sizes of messages
SHORT = 4096  # bytes besides the tensors of a message that is worth remembering


def parse_message(kind: Any, content: bytes) -> Any:
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise BadRequest(f"The message is not a valid {kind.DESCRIPTOR.name}: {error}.") from error


class RawTensor(NamedTuple):
    """Where the bytes of an input lie, and the bytes before them that say so."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    prefix: bytes
    start: int
    size: int


class KnownMessage(NamedTuple):
    """A message that was read and found good, without the bytes of its tensors. Shared: nobody changes it."""

    head: bytes
    tensors: tuple[RawTensor, ...]
    model: str
    version: str
    outputs: list[RequestedOutput]
    parameters: dict[str, Parameter]

    def fits(self, content: bytes) -> bool:
        """Whether ``content``, as long as this message, differs from it in the tensors' bytes alone."""
        for tensor in self.tensors:
            if not content.startswith(tensor.prefix, tensor.start - len(tensor.prefix)):
                return False
        return content.startswith(self.head)

    def request(self, content: bytes) -> InferenceRequest:
        inputs = {
            name: read_binary_tensor(name, content, datatype, shape, start, size)
            for name, datatype, shape, _, start, size in self.tensors
        }
        return InferenceRequest(self.model, self.version, inputs, self.outputs, "", self.parameters)


class InferMessages:
    """Reads inference requests; what a message has in common with the last of its size is read once."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._known: dict[int, KnownMessage] = {}

    def read(self, content: bytes) -> InferenceRequest:
        known = self._known.get(len(content))
        if known is not None and known.fits(content):
            return known.request(content)
        message = parse_message(pb.ModelInferRequest, content)
        request = read_grpc_request(message, self._max_bytes)
        if message.raw_input_contents and not request.id:  # ids differ from request to request
            self._remember(content, message, request)
        return request

    def _remember(self, content: bytes, message: Any, request: InferenceRequest) -> None:
        raw = message.raw_input_contents
        end = pb.ModelInferRequest(raw_input_contents=raw).SerializeToString()
        head = content[: len(content) - len(end)]
        if len(head) > SHORT or not content.endswith(end) or not _stands_alone(head):
            return
        tensors, at = [], len(head)
        for tensor, data in zip(message.inputs, raw, strict=True):
            field = pb.ModelInferRequest(raw_input_contents=[data]).SerializeToString()
            prefix = field[: len(field) - len(data)]
            at += len(prefix)
            tensors.append(RawTensor(tensor.name, tensor.datatype, tuple(tensor.shape), prefix, at, len(data)))
            at += len(data)
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[len(content)] = KnownMessage(
            head, tuple(tensors), request.model, request.version, request.outputs, request.parameters
        )


def _stands_alone(head: bytes) -> bool:
    """Whether no field of the message reaches from its head into the tensors, and all tensors come after it."""
    try:
        return not pb.ModelInferRequest.FromString(head).raw_input_contents
    except DecodeError:
        return False
