"""A TorchScript file as a graph to compare: a node for each module, with its code, submodules and tensors."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from osa_runtime.exporters.torch_exports import in_order, is_code, is_needed
from osa_runtime.verification.structure.graph import (
    Array,
    Graph,
    MalformedGraphError,
    Model,
    Node,
    Property,
    StoredTensor,
    digest,
    property_of,
    property_of_content,
    read_entries,
)

STORAGES = {
    "FloatStorage": "f4",
    "DoubleStorage": "f8",
    "HalfStorage": "f2",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}


def read_script(path: Path) -> Model:
    entries = {name: x for entry, x in read_entries(path).items() if is_needed(name := f"model/{entry}")}
    try:
        return _model(in_order(entries))
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, pickle.UnpicklingError) as error:
        raise MalformedGraphError(f"{path.name} is not as TorchScript writes it: {error!r}") from error


def _model(entries: Mapping[str, bytes]) -> Model:
    code = dict(_definitions(entries))
    builder = _Builder(entries, code)
    root = builder.value("", _unpickled(entries["model/data.pkl"]))
    builder.folder = "model/constants"
    constants = builder.value("constants", _unpickled(entries["model/constants.pkl"]))
    used = {
        "model/data.pkl",
        "model/constants.pkl",
        *builder.used,
        *(name for name in entries if is_code(name, "model")),
    }
    head = {
        f"the function {name}, line {number:03}": property_of(line)
        for name, lines in code.items()
        if name not in builder.classes
        for number, line in enumerate(lines)
    }
    head |= {f"the entry {name}": property_of_content(entries[name]) for name in entries if name not in used}
    return Model(Graph({}, builder.tensors, tuple(builder.nodes), (root, constants)), head=head)


def _definitions(entries: Mapping[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """The code of each class and function, by its name in the model's own namespace."""
    for path, content in entries.items():
        if is_code(path, "model"):
            module = path.removeprefix("model/code/").removesuffix(".py").replace("/", ".")
            for text in re.split(r"^(?=class |def )", content.decode(), flags=re.MULTILINE):
                if text:
                    name = re.split(r"\W", text.split(" ", 1)[1], maxsplit=1)[0]
                    yield f"{module}.{name}", text.splitlines()


class _Builder:
    def __init__(self, entries: Mapping[str, bytes], code: Mapping[str, list[str]]) -> None:
        self.entries, self.code = entries, code
        self.folder = "model/data"
        self.tensors: dict[str, StoredTensor] = {}
        self.nodes: list[Node] = []
        self.classes: set[str] = set()
        self.used: set[str] = set()

    def value(self, path: str, content: Any) -> str:
        """The name of the value that a stored object becomes."""
        name = path or "the model"
        if isinstance(content, _Stored):
            self._tensor(name, content)
        elif isinstance(content, _Object):
            self.classes.add(content.kind)
            lines = self.code.get(content.kind, [])
            properties = {f"code, line {number:03}": property_of(line) for number, line in enumerate(lines)}
            self._node(path, name, content.kind, content.state, properties)
        elif isinstance(content, (dict, list, tuple)):
            items = content if isinstance(content, dict) else {str(i): item for i, item in enumerate(content)}
            self._node(path, name, type(content).__name__, items, {})
        else:
            self.nodes.append(Node(name, (type(content).__name__,), (), (name,), {"value": property_of(content)}))
        return name

    def _node(self, path: str, name: str, kind: str, items: Mapping[Any, Any], properties: dict[str, Property]) -> None:
        properties["attributes"] = property_of(list(map(repr, items)))
        reads = tuple(self.value(f"{path}.{key}".lstrip("."), item) for key, item in items.items())
        self.nodes.append(Node(name, (kind.rpartition(".")[2],), reads, (name,), properties))

    def _tensor(self, name: str, stored: _Stored) -> None:
        (_, kind, key, _, count), offset, sizes, strides, _, *rest = stored.arguments
        entry = f"{self.folder}/{key}"
        if rest != [{}]:  # hooks, and the flags for negated or conjugated values
            raise ValueError(f"{name} is stored with {rest}, where a tensor of an export has no hooks and no flags")
        self.used.add(entry)
        layout = [str(kind), count, offset, list(sizes), list(strides)]
        array = partial(_array, self.entries[entry], str(kind), offset, sizes, strides)
        self.tensors[name] = StoredTensor(digest(layout, array().tobytes()), array)


def _array(content: bytes, kind: str, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    flat = np.frombuffer(content, STORAGES.get(kind.rpartition(".")[2], "u1"))
    if kind.rpartition(".")[2] not in STORAGES:
        return flat
    view = np.lib.stride_tricks.as_strided(
        flat[offset:], sizes, [stride * flat.itemsize for stride in strides], writeable=False
    )
    reach = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if 0 not in sizes else -1
    if offset < 0 or min(strides, default=0) < 0 or offset + reach >= flat.size:
        raise ValueError("a tensor reaches beyond its storage")
    return view


class _Object:
    """An instance of a class of the model; ``kind`` is the class."""

    kind = ""
    state: Any = ()

    def __setstate__(self, state: Any) -> None:
        if self.state != ():
            raise ValueError(f"{self.kind} has two states")
        self.state = state if isinstance(state, dict) else {"state": state}


class _Stored:
    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments


class _Reader(pickle.Unpickler):
    """Makes records of the classes that the file names, and imports nothing."""

    def find_class(self, module: str, name: str) -> Any:
        known: dict[str, Callable[..., Any]] = {
            "torch._utils._rebuild_tensor_v2": _Stored,
            "collections.OrderedDict": dict,
        }
        if module.startswith("__torch__"):
            return type(name, (_Object,), {"kind": f"{module}.{name}"})
        if f"{module}.{name}" in known:
            return known[f"{module}.{name}"]
        if name.endswith("Storage"):
            return f"{module}.{name}"
        return lambda *arguments: {f"{module}.{name}": list(arguments)}

    def persistent_load(self, pid: Any) -> Any:
        return pid


def _unpickled(content: bytes) -> Any:
    return _Reader(io.BytesIO(content)).load()
