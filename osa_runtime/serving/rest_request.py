"""A REST inference request: a JSON object, and after it the tensors that travel as raw bytes."""

from __future__ import annotations

from osa_runtime.serving.binary_tensors import read_binary_tensor
from osa_runtime.serving.compression import decompress
from osa_runtime.serving.json_tensors import read_json_tensor
from osa_runtime.serving.messages import Array, InferenceRequest
from osa_runtime.serving.refusals import BadRequest
from osa_runtime.serving.rest_head import RequestHead
from osa_runtime.serving.rest_layout import SHORT, Layout, read_layout, remembered_layout
from osa_runtime.serving.settings import Limits


def read_request(head: RequestHead, body: bytes, limits: Limits) -> InferenceRequest:
    if head.encoding and head.encoding != "identity":
        body = decompress(body, head.encoding, limits.body)
    json_size = len(body) if head.json_size is None else _header_length(head.json_size, len(body))
    read = remembered_layout if json_size < len(body) and json_size <= SHORT else read_layout
    layout = read(body[:json_size], limits.tensor)
    inputs = _read_inputs(layout, body, json_size)
    return InferenceRequest(
        head.model, head.version, inputs, layout.outputs, layout.id, layout.parameters, layout.binary, head.trace
    )


def _header_length(text: str, size: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) > size:
        raise BadRequest(
            f"Inference-Header-Content-Length is {text[:40]!r}, expected a number of bytes up to the body's {size}."
        )
    return int(text)


def _read_inputs(layout: Layout, body: bytes, start: int) -> dict[str, Array]:
    inputs: dict[str, Array] = {}
    for entry in layout.inputs:
        name, size = entry.name, entry.size
        if size is None:
            inputs[name] = read_json_tensor(name, entry.data, entry.datatype, entry.shape)
            continue
        if start + size > len(body):
            raise BadRequest(f"Input {name} names {size} bytes of binary data; the body has {len(body) - start} left.")
        inputs[name] = read_binary_tensor(name, body, entry.datatype, entry.shape, start, size)
        start += size
    if start != len(body):
        raise BadRequest(f"The body has {len(body) - start} bytes after its last tensor, expected none.")
    return inputs
