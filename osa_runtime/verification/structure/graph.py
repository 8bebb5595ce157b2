"""A graph of any format for comparison: the properties and inputs of its nodes, and digests of its values.

Digests depend on what is computed, not on names or the order of nodes.
The digest of a value covers the node that makes it, all its attributes, the digests of all its inputs, and the bodies
of its functions, branches and loops. Two models whose outputs have the same digests, and that hold
the same nodes and weights, are one model.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Iterable, Mapping
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
class Property:
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
    properties: Mapping[str, Property] = field(default_factory=dict)
    bodies: Mapping[str, Graph] = field(default_factory=dict)

    def __str__(self) -> str:
        """The name, and the operator if the name does not include it."""
        last = self.operator[-1]
        return self.name if last in self.name else f"{self.name} ({last})" if self.name else last

    def reads(self) -> set[str]:
        """The values that the node and its bodies read from outside."""
        return {name for name in self.inputs if name}.union(*(body.captures() for body in self.bodies.values()))


@dataclass(frozen=True)
class StoredTensor:
    digest: bytes
    array: Callable[[], Array]


@dataclass(frozen=True)
class Graph:
    """A graph; ``inputs`` and ``claims`` hold types and shapes by value name, ``rest`` anything else that counts."""

    inputs: Mapping[str, bytes]
    tensors: Mapping[str, StoredTensor]
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
    """A model; ``head`` holds properties of all of it, including the types of the graph's inputs and outputs."""

    graph: Graph
    functions: Mapping[Operator, Graph] = field(default_factory=dict)
    head: Mapping[str, Property] = field(default_factory=dict)

    def weights(self) -> dict[str, Array]:
        return {name: tensor.array() for name, tensor in self.graph.tensors.items()}


def array_tensor(array: Array) -> StoredTensor:
    content = np.ascontiguousarray(array)
    return StoredTensor(digest(str(array.dtype), list(array.shape), content.tobytes()), lambda: array)


def property_of(value: Any) -> Property:
    """A property whose text is all of it."""
    return Property(digest(repr(value)), lambda: str(value)[:200])


def property_of_content(content: bytes) -> Property:
    return Property(found := digest(content), lambda: f"{len(content)} bytes with the hash {found.hex()[:12]}")


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


@dataclass
class Scope:
    """A graph, or the body of a branch, a loop or a function: its names and their digests."""

    graph: Graph
    functions: Functions
    parent: Scope | None = None
    where: str = ""  # its name in messages
    digests: dict[str, bytes] = field(default_factory=dict)
    makers: dict[str, tuple[Node, int]] = field(default_factory=dict)
    nodes: list[bytes] = field(default_factory=list)
    bodies: dict[tuple[Node, str], Scope] = field(default_factory=dict)

    def __post_init__(self) -> None:
        level = self.level
        for index, (name, claim) in enumerate(self.graph.inputs.items()):
            # The inputs of the whole model are known by their names, those of a body by their places.
            known = name if level == 0 and not self.graph.is_function else index
            self._define(name, digest(b"input", level, known, claim))
        for name, tensor in self.graph.tensors.items():
            self._define(name, tensor.digest)
        self._add_all(self.graph.nodes)

    @property
    def level(self) -> int:
        return 0 if self.parent is None else self.parent.level + 1

    def find(self, name: str) -> Scope:
        """The scope that a name belongs to: this one, or one around it."""
        if name in self.digests:
            return self
        if self.parent is None:
            raise MalformedGraphError(f"{name!r} is read, but nothing makes it")
        return self.parent.find(name)

    def digest(self, name: str) -> bytes:
        return self.find(name).digests[name] if name else b""

    def tensors(self) -> list[bytes]:
        return sorted(tensor.digest for tensor in self.graph.tensors.values())

    def own_digest(self) -> bytes:
        """The digest of the whole graph, including unused nodes: a dead node can still fail."""
        claims = sorted(digest(self.digest(name), claim) for name, claim in self.graph.claims.items())
        given = [self.digest(name) for name in self.graph.outputs]
        inputs = len(self.graph.inputs)
        return digest(b"graph", inputs, given, sorted(self.nodes), self.tensors(), claims, self.graph.rest)

    def _define(self, name: str, value: bytes) -> None:
        if self._knows(name):
            raise MalformedGraphError(f"two things have the name {name!r}")
        self.digests[name] = value

    def _knows(self, name: str) -> bool:
        return name in self.digests or (self.parent is not None and self.parent._knows(name))

    def _add_all(self, nodes: Iterable[Node]) -> None:
        """Add all nodes, stored in any order."""
        waiting = [(node, node.reads()) for node in nodes]
        while waiting:
            left = []
            for node, needed in waiting:
                if all(self._knows(name) for name in needed):
                    self._add(node)
                else:
                    left.append((node, needed))
            if len(left) == len(waiting):
                names = sorted({name for _, needed in left for name in needed if not self._knows(name)})
                raise MalformedGraphError(f"{', '.join(names[:3])} is read, but nothing makes it")
            waiting = left

    def _add(self, node: Node) -> None:
        known = self._node_digest(node)
        self.nodes.append(known)
        for index, name in enumerate(node.outputs):
            if name:
                self._define(name, digest(b"value", known, index))
                self.makers[name] = (node, index)

    def _node_digest(self, node: Node) -> bytes:
        for name, body in node.bodies.items():
            self.bodies[node, name] = Scope(body, self.functions, None if body.is_function else self)
        return digest(
            b"node",
            node.operator,
            self.functions.digest(node.operator),
            [self.digest(name) for name in node.inputs],
            len(node.outputs),
            [(name, node.properties[name].digest) for name in sorted(node.properties)],
            [(name, self.bodies[node, name].own_digest()) for name in sorted(node.bodies)],
        )


@dataclass
class Functions:
    """The functions of a model, digested when they are first called."""

    graphs: Mapping[Operator, Graph]
    scopes: dict[Operator, Scope] = field(default_factory=dict)
    open: set[Operator] = field(default_factory=set)

    def digest(self, operator: Operator) -> bytes:
        """The digest of a function; empty for an operator that is not a function of the model."""
        return self.scope(operator).own_digest() if operator in self.graphs else b""

    def digests(self) -> dict[Operator, bytes]:
        return {operator: self.digest(operator) for operator in self.graphs}

    def scope(self, operator: Operator) -> Scope:
        if operator not in self.scopes:
            if operator in self.open:
                raise MalformedGraphError(f"the function {operator[-1]} calls itself")
            self.open.add(operator)
            self.scopes[operator] = Scope(self.graphs[operator], self)
        return self.scopes[operator]


def main_scope(model: Model) -> Scope:
    return Scope(model.graph, Functions(model.functions))
