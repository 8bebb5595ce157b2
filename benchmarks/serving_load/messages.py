"""Inference requests of the Open Inference Protocol as bytes, and the tensors in the answers."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
from tritonclient.grpc import service_pb2

PROTOCOLS = ("binary", "json", "grpc")

Array = np.ndarray[Any, np.dtype[np.float32]]


class BadAnswer(Exception):
    """The server answered with an error, or with other numbers than the model's."""


class HttpAnswer(NamedTuple):
    """``header_size`` is where the tensors begin in an answer in binary form."""

    status: int
    body: bytes
    header_size: int | None = None


@dataclass(frozen=True)
class Question:
    """One input of a model, and the answer of ONNX Runtime in this process."""

    model: str
    input: str
    array: Array
    expected: Array

    def encode(self, protocol: str) -> bytes:
        """The whole HTTP request, or the protobuf message of the gRPC call."""
        raw = self.array.tobytes()
        if protocol == "grpc":
            request = service_pb2.ModelInferRequest(model_name=self.model, raw_input_contents=[raw])
            request.inputs.add(name=self.input, datatype="FP32", shape=self.array.shape)
            return bytes(request.SerializeToString())
        tensor: dict[str, Any] = {"name": self.input, "shape": list(self.array.shape), "datatype": "FP32"}
        if protocol == "json":
            body = json.dumps({"inputs": [tensor | {"data": self.array.ravel().tolist()}]}).encode()
            headers = "Content-Type: application/json\r\n"
        else:
            tensor["parameters"] = {"binary_data_size": len(raw)}
            head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
            headers = f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {len(head)}\r\n"
            body = head + raw
        line = f"POST /v2/models/{self.model}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        return f"{line}{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def check(self, protocol: str, answer: HttpAnswer | bytes) -> None:
        found = decode(protocol, answer)
        if found.size != self.expected.size:
            raise BadAnswer(f"{found.size} numbers, expected {self.expected.size}")
        error = float(np.abs(found - self.expected.ravel()).max() / np.abs(self.expected).max())
        if not error < 1e-4:  # NaN is not an answer, either
            raise BadAnswer(f"the numbers are not the model's: relative error {error:.1e}")


def decode(protocol: str, answer: HttpAnswer | bytes) -> Array:
    """The numbers of the first output."""
    if isinstance(answer, bytes):
        response = service_pb2.ModelInferResponse.FromString(answer)
        if response.raw_output_contents:
            return np.frombuffer(response.raw_output_contents[0], np.float32)
        return np.array(response.outputs[0].contents.fp32_contents, np.float32)
    if answer.status != 200:
        raise BadAnswer(f"HTTP {answer.status}: {answer.body[:200].decode(errors='replace')}")
    if (protocol == "binary") != (answer.header_size is not None):
        raise BadAnswer(f"the answer to a {protocol} request is in the other form")
    if answer.header_size is not None:
        return np.frombuffer(answer.body[answer.header_size :], np.float32)
    return np.array(orjson.loads(answer.body)["outputs"][0]["data"], np.float32).ravel()
