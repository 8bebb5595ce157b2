"""The other files that an ONNX file reads its tensors from, found without the onnx package.

Any tensor of a model may be in another file, at any path in its ``external_data``: initializers, constants
and attributes, in graphs, subgraphs and functions. A hash of the model says nothing about such a file.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from osa_runtime.errors import ArtifactError

# onnx.proto: for every message from which a tensor can be reached, the fields that lead on
FIELDS: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorProto": {13: "StringStringEntryProto"},
}
ENTRY, KEY, VALUE = "StringStringEntryProto", 1, 2
EXTERNAL, DATA = 13, {4, 5, 6, 7, 9, 10, 11}  # fields of a tensor: where it is kept, and its values themselves
WHOLE = re.compile("0|[1-9][0-9]*")  # readers differ in what else they accept as a number
VARINT, FIXED64, MESSAGE, FIXED32 = 0, 1, 2, 5


def external_files(path: Path) -> set[str]:
    """The locations as the file has them: relative to its folder, or any other text."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return set(_locations(content))
    except (OSError, ValueError, IndexError) as error:  # ValueError: an empty file cannot be mapped
        raise ArtifactError(f"{path} cannot be read as an ONNX file: {error}. Export the model again.") from error


def _locations(content: mmap.mmap) -> Iterator[str]:
    waiting = [("ModelProto", 0, len(content))]
    while waiting:
        kind, start, end = waiting.pop()
        fields = list(_messages(content, start, end))
        if kind == "TensorProto":
            yield from _location(content, fields)
            continue
        inside = FIELDS[kind]
        waiting += [(inside[number], a, b) for number, a, b in fields if number in inside]


def _location(content: mmap.mmap, fields: Sequence[tuple[int, int, int]]) -> Iterator[str]:
    """The location of an external tensor. Entries that readers may interpret differently are refused."""
    entries = [_entry(content, a, b) for number, a, b in fields if number == EXTERNAL]
    if not entries:
        return
    keys, known = sorted(key for key, _ in entries), dict(entries)
    if not {"location"} <= set(keys) <= {"location", "offset", "length"} or len(keys) != len(known):
        raise ValueError(f"external data has {', '.join(keys)}, expected location, offset and length, each once")
    for key in keys:
        if key != "location" and not WHOLE.fullmatch(known[key]):
            raise ValueError(f"the {key} of external data is {known[key]!r}, expected a whole number")
    if any(number in DATA and a < b for number, a, b in fields):
        raise ValueError(f"a tensor has values of its own and others in {known['location']!r}")
    yield known["location"]


def _entry(content: mmap.mmap, start: int, end: int) -> tuple[str, str]:
    found = {number: content[a:b].decode("utf-8", "replace") for number, a, b in _messages(content, start, end)}
    return found.get(KEY, ""), found.get(VALUE, "")


def _messages(content: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The number, start and end of every field that has a length; numbers are skipped."""
    while start < end:
        tag, start = _varint(content, start)
        wire = tag & 7
        if wire == MESSAGE:
            length, start = _varint(content, start)
            yield tag >> 3, start, start + length
            start += length
        elif wire == VARINT:
            _, start = _varint(content, start)
        elif wire in (FIXED64, FIXED32):
            start += 8 if wire == FIXED64 else 4
        else:
            raise ValueError(f"no field of ONNX has the wire type {wire}")
    if start != end:
        raise ValueError("a field ends after its message")


def _varint(content: mmap.mmap, start: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        digit = content[start]
        start += 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value, start
    raise ValueError("a number has more than ten bytes")
