"""Inference requests of the Open Inference Protocol as bytes, and the tensors in the answers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from tritonclient.grpc import service_pb2

PROTOCOLS = ("binary", "json", "grpc")
STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
HEADER_SIZE = re.compile(rb"(?i)\r\ninference-header-content-length: *(\d+)")

Array = np.ndarray[Any, np.dtype[np.float32]]


class BadAnswer(Exception):
    """The server answered with an error, or with other numbers than the model's."""


@dataclass(frozen=True)
class Question:
    """One input of a model, and what ONNX Runtime answers in this process."""

    model: str
    input: str
    array: Array
    expected: Array

    def encode(self, protocol: str) -> bytes:
        """The whole HTTP request, or the protobuf message of the gRPC call."""
        if protocol == "grpc":
            return self._message()
        tensor: dict[str, Any] = {"name": self.input, "shape": list(self.array.shape), "datatype": "FP32"}
        if protocol == "json":
            body = json.dumps({"inputs": [tensor | {"data": self.array.ravel().tolist()}]}).encode()
            return self._post(body, "Content-Type: application/json\r\n")
        raw = self.array.tobytes()
        tensor["parameters"] = {"binary_data_size": len(raw)}
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        size = f"Inference-Header-Content-Length: {len(head)}\r\n"
        return self._post(head + raw, f"Content-Type: application/octet-stream\r\n{size}")

    def _post(self, body: bytes, headers: str) -> bytes:
        line = f"POST /v2/models/{self.model}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        return f"{line}{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def _message(self) -> bytes:
        request = service_pb2.ModelInferRequest(model_name=self.model)
        tensor = request.inputs.add(name=self.input, datatype="FP32")
        tensor.shape.extend(self.array.shape)
        request.raw_input_contents.append(self.array.tobytes())
        return bytes(request.SerializeToString())

    def check(self, protocol: str, answer: bytes) -> None:
        found = decode(protocol, answer)
        if found.size != self.expected.size:
            raise BadAnswer(f"{found.size} numbers, expected {self.expected.size}")
        scale = float(np.abs(self.expected).max())
        error = float(np.abs(found - self.expected.ravel()).max()) / scale
        if not error < 1e-4:  # NaN is no answer, either
            raise BadAnswer(f"the numbers are not the model's: relative error {error:.1e}")


def decode(protocol: str, answer: bytes) -> Array:
    """The numbers of the first output."""
    if protocol == "grpc":
        return _of_message(answer)
    head, _, body = answer.partition(b"\r\n\r\n")
    status = STATUS.match(head)
    if status is None or status[1] != b"200":
        line, _, _ = head.partition(b"\r\n")
        raise BadAnswer(f"{line.decode(errors='replace')}: {body[:200].decode(errors='replace')}")
    size = HEADER_SIZE.search(head)
    if (protocol == "binary") != (size is not None):
        raise BadAnswer(f"the answer to a {protocol} request is in the other form")
    if size is not None:
        return np.frombuffer(body[int(size[1]) :], np.float32)
    return np.array(orjson.loads(body)["outputs"][0]["data"], np.float32).ravel()


def _of_message(answer: bytes) -> Array:
    response = service_pb2.ModelInferResponse.FromString(answer)
    if response.raw_output_contents:
        return np.frombuffer(response.raw_output_contents[0], np.float32)
    return np.array(response.outputs[0].contents.fp32_contents, np.float32)
