"""The bodies of REST: a request's, read no further than the limit, and the answer's, JSON and then raw bytes."""

from __future__ import annotations

import math
from typing import Any

import orjson
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from osa_runtime.serving.engine.messages import Array, InferenceRequest, InferenceResponse
from osa_runtime.serving.protocol.tensors import BYTES, NAME_OF_DTYPE, classify, write_binary_tensor, write_byte_strings
from osa_runtime.serving.refusals import Refusal, TooLarge


class Body:
    """``announced`` is its length, None for chunks. ``unread`` is true until the last byte has arrived.

    ``received`` counts the bytes so far.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.announced: int | None = None
        self.unread = True
        self.received = 0
        self._content: bytes | bytearray = bytearray()

    def expect(self, announced: int | None) -> None:
        self.announced = announced
        self.unread = announced != 0

    async def read(self, limit: int, enough: float = math.inf) -> bytes | bytearray:
        """The whole body, or the first bytes of it once ``enough`` have arrived. The next call continues from there."""
        if self.announced is not None and self.announced > limit:
            raise body_too_large(limit)
        while self.unread and self.received < enough:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk = message.get("body", b"")
            self.unread = message.get("more_body", False)
            self.received += len(chunk)
            if self.received > limit:
                raise body_too_large(limit)
            if not self._content and not self.unread:
                self._content = chunk
            else:
                self._content += chunk
        return self._content


def replay(content: bytes | bytearray) -> Receive:
    """``receive`` for a body that has been read."""

    async def receive() -> Message:
        return {"type": "http.request", "body": bytes(content), "more_body": False}

    return receive


def body_too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body has more than {limit} bytes, the limit of this server for such a request.")


Headers = list[tuple[bytes, bytes]]
JSON_TYPE = (b"content-type", b"application/json")
BINARY_TYPE = (b"content-type", b"application/octet-stream")


def write_response(request: InferenceRequest, response: InferenceResponse) -> tuple[Headers, bytes]:
    outputs: list[dict[str, Any]] = []
    chunks = [b""]
    if request.outputs:
        wanted = [(o.name, o.binary, o.classes) for o in request.outputs]
    else:
        wanted = [(name, request.binary, 0) for name in response.outputs]
    for name, binary, classes in wanted:
        array = response.outputs[name]
        array = classify(name, array, classes, response.class_names) if classes else array
        entry: dict[str, Any] = {"name": name, "datatype": NAME_OF_DTYPE.get(array.dtype, BYTES), "shape": array.shape}
        if binary:
            data = write_byte_strings(array) if classes else write_binary_tensor(array)
            entry["parameters"] = {"binary_data_size": len(data)}
            chunks.append(data)
        else:
            entry["data"] = _json_data(array)
        outputs.append(entry)
    fields: dict[str, Any] = {"id": response.id} if response.id else {}
    fields |= {"model_name": response.model, "model_version": response.version, "outputs": outputs}
    return _join(fields, chunks)


def write_error(refusal: Refusal) -> tuple[Headers, bytes]:
    headers = [JSON_TYPE]
    if refusal.retry_after is not None:
        headers.append((b"retry-after", str(refusal.retry_after).encode()))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers, orjson.dumps({"error": str(refusal)})


def _join(fields: dict[str, Any], chunks: list[bytes]) -> tuple[Headers, bytes]:
    header = orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
    if len(chunks) == 1:
        return [JSON_TYPE], header
    chunks[0] = header
    return [BINARY_TYPE, (b"inference-header-content-length", str(len(header)).encode())], b"".join(chunks)


def _json_data(array: Array) -> Any:
    if array.dtype.kind == "O":
        return [text.decode() for text in array.ravel()]
    # orjson writes an array as it lies in memory
    return array.ravel()
