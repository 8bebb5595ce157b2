"""The number of squarings in each layer of an ONNX model, as the graph itself counts them.

Every call of orthogonal attention has its count as a second value, which is not an output of the graph. To
observe it, the values are made outputs when the model is loaded. That needs no ONNX package: a protobuf message
followed by another is the two merged, so what is missing is appended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from osa_runtime.artifact import Manifest

# Field numbers of onnx.proto
MODEL_GRAPH, GRAPH_OUTPUT = 7, 12
VALUE_NAME, VALUE_TYPE, TYPE_TENSOR, TENSOR_ELEMENT, TENSOR_SHAPE = 1, 2, 1, 1, 2
INT64 = 7


class Squarings:
    """The squarings of each layer in the latest run, and the most in any run; empty before the first."""

    def __init__(self, layers: Sequence[str]) -> None:
        self._layers = tuple(layers)
        self.latest: dict[str, int] = {}
        self.most: dict[str, int] = {}

    def add(self, counts: Iterable[Any]) -> None:
        for layer, value in zip(self._layers, counts, strict=True):
            count = int(value)
            self.latest[layer] = count
            if count > self.most.get(layer, -1):
                self.most[layer] = count

    def forget(self) -> None:
        self.latest, self.most = {}, {}


def counted_layers(manifest: Manifest) -> dict[str, str]:
    """The value that holds the count, for each layer that has one; a layer with two calls has two."""
    calls = [(call.name, call.squarings) for call in manifest.attentions if call.squarings is not None]
    uses = Counter(name for name, _ in calls)
    return {name if name and uses[name] == 1 else count: count for name, count in calls}


def with_counts(model: bytes, values: Iterable[str]) -> bytes:
    """The model with these scalars among its outputs."""
    tensor = _varint(TENSOR_ELEMENT << 3) + _varint(INT64) + _message(TENSOR_SHAPE, b"")
    kind = _message(VALUE_TYPE, _message(TYPE_TENSOR, tensor))
    outputs = (_message(GRAPH_OUTPUT, _message(VALUE_NAME, name.encode()) + kind) for name in values)
    return model + _message(MODEL_GRAPH, b"".join(outputs))


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)
