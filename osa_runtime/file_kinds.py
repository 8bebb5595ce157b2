"""Which kind of file something is, from its content and without running any of it. Needs neither torch nor numpy."""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import IO

MOST_PICKLES = 5  # torch's format before zip archives: a magic number, a version, the machine, the object, its tensors
LARGEST_PICKLE = 32 * 2**20
PLAIN_DATA = ("collections", "torch", "torch._utils", "torch._tensor", "torch.storage", "torch.serialization")
PICTURES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"P5\n", b"P6\n")


class FileKind(Enum):
    """The value completes "FILE is …"."""

    ONNX = "an ONNX model"
    TORCHSCRIPT = "a TorchScript model"
    PT2 = "a model of torch.export"
    WEIGHTS = "a file of weights without a model (a state_dict)"
    SAFETENSORS = "a safetensors file: weights without a model"
    PICKLE = "a pickled object of Python, perhaps a whole module"
    ARRAYS = "a file of arrays"
    PICTURE = "a picture"
    LFS = "a pointer of Git LFS to the real file"
    EMPTY = "an empty file"
    UNKNOWN = "not a file that we know"


# What is certainly no model; anything else may be a damaged one, which its runtime can say best.
NO_MODELS = frozenset(FileKind) - {FileKind.ONNX, FileKind.TORCHSCRIPT, FileKind.PT2, FileKind.UNKNOWN}


def file_kind(path: Path) -> FileKind:
    try:
        with path.open("rb") as stream:
            head = stream.read(64)
            stream.seek(0)
            if not head:
                return FileKind.EMPTY
            if zipfile.is_zipfile(stream):
                return _archive(path)
            stream.seek(0)
            return _by_head(head) or _pickle(head, stream) or _by_name(path)
    except OSError:
        return FileKind.UNKNOWN


def _by_head(head: bytes) -> FileKind | None:
    if head.startswith(b"version https://git-lfs"):
        return FileKind.LFS
    if head.startswith(b"\x93NUMPY"):
        return FileKind.ARRAYS
    if head.startswith(PICTURES) or head[8:12] == b"WEBP":
        return FileKind.PICTURE
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32:
        return FileKind.SAFETENSORS
    return None


def _by_name(path: Path) -> FileKind:
    """A protobuf has nothing at its head to know it by."""
    return FileKind.ONNX if path.suffix == ".onnx" else FileKind.UNKNOWN


def _archive(path: Path) -> FileKind:
    try:
        with zipfile.ZipFile(path) as archive:
            # All records of torch lie in one folder, which is called as the file once was.
            names = {name.partition("/")[2]: name for name in archive.namelist()}
            if "archive_format" in names:
                return FileKind.PT2
            if any(name.startswith("code/") for name in names):
                return FileKind.TORCHSCRIPT
            if "data.pkl" in names:
                with archive.open(names["data.pkl"]) as stream:
                    return FileKind.WEIGHTS if _is_plain(stream) else FileKind.PICKLE
            arrays = all(name.endswith(".npy") for name in archive.namelist())
            return FileKind.ARRAYS if arrays and archive.namelist() else FileKind.UNKNOWN
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError):
        return FileKind.UNKNOWN


def _pickle(head: bytes, stream: IO[bytes]) -> FileKind | None:
    if head[:1] != b"\x80" or head[1] > 5:
        return None
    return FileKind.WEIGHTS if _is_plain(stream) else FileKind.PICKLE


def _is_plain(stream: IO[bytes]) -> bool:
    """Whether every class that a pickle names is one of those that tensors are made of; nothing is called."""
    return all(module in PLAIN_DATA or module.startswith("numpy") for module in _modules(stream))


def _modules(stream: IO[bytes]) -> Iterator[str]:
    for _ in range(MOST_PICKLES):
        strings: list[str] = []
        memo: dict[int, str] = {}
        count, last = 0, ""
        try:
            for operation, argument, position in pickletools.genops(stream):
                name = operation.name
                if name in ("GLOBAL", "INST"):
                    yield str(argument).split(" ")[0]
                elif name == "STACK_GLOBAL":  # the two strings before it
                    yield strings[-2] if len(strings) > 1 else "?"
                elif name == "MEMOIZE" or name.endswith("BINPUT"):
                    memo[count if argument is None else int(argument)], count = last, count + 1
                elif name.endswith("BINGET"):
                    strings.append(memo.get(int(argument or 0), ""))
                last = argument if isinstance(argument, str) else ""
                if last:
                    strings.append(last)
                if position is not None and position > LARGEST_PICKLE:
                    return
        except ValueError:
            return  # the tensors themselves follow, or it is damaged
