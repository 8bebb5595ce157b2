"""A graph of any format for comparison: the facts and inputs of its nodes, the bodies of branches and functions."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.runtime.torch_archives import refuse_ambiguous

Array = NDArray[Any]
Operator = tuple[str, ...]


class MalformedGraphError(Exception):
    """A graph that different readers may read as different models."""


@dataclass(frozen=True)
class Fact:
    """A property of a node: a digest to compare, and the text for a message."""

    digest: bytes
    text: Callable[[], str]


@dataclass(frozen=True, eq=False)  # two nodes are the same only if they are one
class Node:
    """A node; ``inputs`` may hold empty names for optional inputs that are left out."""

    name: str
    operator: Operator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    facts: Mapping[str, Fact] = field(default_factory=dict)
    bodies: Mapping[str, Graph] = field(default_factory=dict)

    def __str__(self) -> str:
        """The name, and the operator if the name does not include it."""
        last = self.operator[-1]
        return self.name if last in self.name else f"{self.name} ({last})" if self.name else last

    def reads(self) -> set[str]:
        """The values that the node and its bodies read from outside."""
        return {name for name in self.inputs if name}.union(*(body.captures() for body in self.bodies.values()))


@dataclass(frozen=True)
class Tensor:
    digest: bytes
    array: Callable[[], Array]


@dataclass(frozen=True)
class Graph:
    """A graph; ``inputs`` and ``claims`` hold types and shapes by value name, ``rest`` anything else that counts."""

    inputs: Mapping[str, bytes]
    tensors: Mapping[str, Tensor]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    claims: Mapping[str, bytes] = field(default_factory=dict)
    rest: bytes = b""
    is_function: bool = False

    def captures(self) -> set[str]:
        own = {*self.inputs, *self.tensors}.union(*(node.outputs for node in self.nodes))
        return set(self.outputs).union(*(node.reads() for node in self.nodes)) - own


@dataclass(frozen=True)
class Model:
    """A model; ``head`` holds facts about all of it, including the types of the graph's inputs and outputs."""

    graph: Graph
    functions: Mapping[Operator, Graph] = field(default_factory=dict)
    head: Mapping[str, Fact] = field(default_factory=dict)

    def weights(self) -> dict[str, Array]:
        return {name: tensor.array() for name, tensor in self.graph.tensors.items()}


def array_tensor(array: Array) -> Tensor:
    content = np.ascontiguousarray(array)
    return Tensor(digest(str(array.dtype), list(array.shape), content.tobytes()), lambda: array)


def fact(value: Any) -> Fact:
    """A fact whose text is all of it."""
    return Fact(digest(repr(value)), lambda: str(value)[:200])


def content_fact(content: bytes) -> Fact:
    return Fact(found := digest(content), lambda: f"{len(content)} bytes with the hash {found.hex()[:12]}")


def digest(*parts: Any) -> bytes:
    """The digest of nested lists of bytes, text and numbers, each with its length, so that it is unambiguous."""
    found = hashlib.sha256()
    for part in parts:
        encoded = digest(*part) if isinstance(part, (list, tuple)) else part
        if not isinstance(encoded, bytes):
            encoded = f"{type(part).__name__} {part}".encode()
        found.update(len(encoded).to_bytes(8, "big"))
        found.update(encoded)
    return found.digest()


def read_entries(path: Path) -> dict[str, bytes]:
    """The entries by name, without the folder that all of them are in."""
    try:
        refuse_ambiguous(path)
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            contents = {name: archive.read(name) for name in names}
    except (OSError, ValueError, NotImplementedError, RuntimeError, zipfile.BadZipFile) as error:
        raise MalformedGraphError(f"{path.name} cannot be read as an archive: {error}") from error
    roots = {name.partition("/")[0] for name in names}
    if len(roots) != 1:
        raise MalformedGraphError(f"{path.name} has several folders: {', '.join(sorted(roots))}")
    return {name.partition("/")[2]: content for name, content in contents.items()}
