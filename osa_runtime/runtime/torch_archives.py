"""Checks that every reader finds the same entries in a zip archive that torch wrote.

Readers of zip files disagree about the directory (is it where the end record says, or right before it?), about entries
of one name and about bytes between entries. A file could hold one model for a check and another one for torch.
"""

from __future__ import annotations

import ast
import json
import mmap
import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

END, END64, LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
CENTRAL, LOCAL = struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")
DESCRIBED, UTF8 = 0x8, 0x800  # flags: sizes follow the data; the name is UTF-8
STORED, DEFLATED = 0, 8
FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF  # the number is in a zip64 record


class ArchiveEntry(NamedTuple):
    name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    offset: int


def refuse_ambiguous(path: Path) -> None:
    """Raise ValueError for an archive whose layout readers may interpret differently."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            start, stop, count = _directory(content)
            entries = list(_entries(content, start, stop))
            _require(len(entries) == count, "its directory has another number of entries than it says")
            _require_no_gaps(content, entries, start)
    except struct.error as error:
        raise ValueError(f"it is not a whole zip archive ({error}).") from error
    twice = [name for name, times in Counter(entry.name.lower() for entry in entries).items() if times > 1]
    _require(not twice, f"it has the entry {b''.join(twice[:1]).decode(errors='replace')} more than once")


def _require(right: bool, wrong: str) -> None:
    if not right:
        raise ValueError(f"{wrong}, so it can be read in two ways.")


def _directory(content: mmap.mmap) -> tuple[int, int, int]:
    """The start and end of the central directory, and its number of entries."""
    stop = len(content) - END.size
    if stop < 0 or content[stop : stop + 4] != b"PK\5\6":
        raise ValueError("it does not end like an archive of torch.")
    _, *disks, here, count, size, start, comment = END.unpack_from(content, stop)
    _require(disks == [0, 0] and here == count and comment == 0, "its end record is not that of a single file")
    if stop >= LOCATOR.size + END64.size and content[stop - LOCATOR.size : stop - LOCATOR.size + 4] == b"PK\6\7":
        short, locator = (count, size, start), stop - LOCATOR.size
        stop = locator - END64.size
        _require(LOCATOR.unpack_from(content, locator) == (b"PK\6\7", 0, stop, 1), "its zip64 record is elsewhere")
        magic, length, _, _, *disks, here, count, size, start = END64.unpack_from(content, stop)
        _require(
            (magic, length, disks, here) == (b"PK\6\6", 44, [0, 0], count), "its zip64 record is not as it must be"
        )
        pairs = zip(short, (count, size, start), (FULL16, FULL32, FULL32), strict=True)
        _require(all(a in (b, full) for a, b, full in pairs), "its two end records disagree")
    _require(start + size == stop, "its directory is not right before its end")
    return start, stop, count


def _entries(content: mmap.mmap, place: int, stop: int) -> Iterator[ArchiveEntry]:
    while place < stop:
        fields = CENTRAL.unpack_from(content, place)
        magic, _, _, flags, method, _, _, crc, packed, size, named, extra, comment, disk, _, _, offset = fields
        place += CENTRAL.size
        name = content[place : place + named]
        place += named + extra
        size, packed, offset = _wide([size, packed, offset], content[place - extra : place])
        _require(magic == b"PK\1\2" and (comment, disk) == (0, 0) and b"\0" not in name, "its directory is malformed")
        _require(flags & ~(DESCRIBED | UTF8) == 0 and method in (STORED, DEFLATED), f"{name!r} is encrypted or unusual")
        yield ArchiveEntry(name, flags, method, crc, packed, size, offset)
    _require(place == stop, "its directory is longer than it says")


def _wide(numbers: list[int], extra: bytes) -> list[int]:
    """The sizes and the offset, from a zip64 field where they need one; no other field is allowed."""
    wide = numbers.count(FULL32)
    expected = struct.pack("<HH", 1, 8 * wide) if wide else b""
    _require(extra[:4] == expected and len(extra) == len(expected) + 8 * wide, "its directory has unusual fields")
    values = iter(struct.unpack_from(f"<{wide}Q", extra, 4) if wide else ())
    return [next(values) if number == FULL32 else number for number in numbers]


def _require_no_gaps(content: mmap.mmap, entries: list[ArchiveEntry], stop: int) -> None:
    place = 0
    for entry in entries:
        wrong = f"the header of {entry.name!r} is not what the directory says"
        _require(entry.offset == place, wrong)
        magic, _, flags, method, _, _, crc, packed, size, named, extra = LOCAL.unpack_from(content, place)
        name = content[place + LOCAL.size : place + LOCAL.size + named]
        _require((magic, flags, method, name) == (b"PK\3\4", entry.flags, entry.method, entry.name), wrong)
        later = flags & DESCRIBED != 0 and (crc, packed, size) == (0, 0, 0)
        same = crc == entry.crc and packed in (entry.packed, FULL32) and size in (entry.size, FULL32)
        _require(later or same, wrong)
        place += LOCAL.size + named + extra + entry.packed
        if flags & DESCRIBED:
            place += _descriptor_length(content, place, entry)
    _require(place == stop, "there is something between its entries and its directory")


def _descriptor_length(content: mmap.mmap, place: int, entry: ArchiveEntry) -> int:
    for layout in (struct.Struct("<4sL2Q"), struct.Struct("<4sL2L")):
        if layout.unpack_from(content, place) == (b"PK\7\10", entry.crc, entry.packed, entry.size):
            return layout.size
    raise ValueError(f"the sizes after {entry.name!r} are not what the directory says, so it can be read in two ways.")


EXPRESSIONS = ("guards_code", "expr_str")
ALLOWED = (
    ast.Expression, ast.BoolOp, ast.boolop, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.Compare, ast.cmpop,
    ast.Constant, ast.Name, ast.Load, ast.Subscript, ast.Attribute, ast.Call, ast.keyword,
)  # fmt: skip
CALLED = re.compile(r"[A-Z]\w*|abs|bool|float|int")  # classes of sympy begin with a capital letter
OF_TENSORS = ("size", "stride", "storage_offset", "dim")
NAME = re.compile(r"[\w.+/-]*")
TEXT = re.compile(r"[^'\"\\\r\n]*")  # the value of an argument, such as the equation of einsum


def refuse_code(content: Any, key: str = "") -> None:
    """Raise ValueError for a text that is more than a name or, under the keys of expressions, more than arithmetic."""
    if isinstance(content, dict):
        for name, value in content.items():
            _refuse_text(name, "")
            if key != "metadata" or not isinstance(value, str):  # of nodes: where they come from
                refuse_code(value, name)
    elif isinstance(content, (list, tuple)):
        for value in content:
            refuse_code(value, key)
    elif isinstance(content, str):
        _refuse_text(content, key)


def _refuse_text(text: str, key: str) -> None:
    if key in EXPRESSIONS:
        _refuse_expression(text)
    elif text[:1] in ("[", "{"):  # a specification of inputs or outputs is JSON within JSON
        refuse_code(json.loads(text))
    elif not (TEXT if key in ("as_string", "as_float") else NAME).fullmatch(text):
        raise ValueError(f"{text[:80]!r} is not a name that torch.export writes; it could run as code.")


def _refuse_expression(text: str) -> None:
    one_line = re.search(r"[#\\\r\n]", text) is None
    nodes = ast.walk(ast.parse(text, mode="eval"))
    if not one_line or not all(isinstance(node, ALLOWED) and _is_arithmetic(node) for node in nodes):
        raise ValueError(f"the expression {text[:80]!r} is not arithmetic of sizes; it could run any code.")


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) or (
            isinstance(node.func, ast.Name) and CALLED.fullmatch(node.func.id) is not None
        )
    if isinstance(node, ast.Attribute):
        of_math = isinstance(node.value, ast.Name) and node.value.id == "math" and not node.attr.startswith("_")
        return of_math or node.attr in OF_TENSORS
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return NAME.fullmatch(node.value) is not None
    return not isinstance(node, ast.Constant) or isinstance(node.value, (bool, int, float))
