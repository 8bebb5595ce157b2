"""Protobuf's text format, as far as configurations need it, without the protobuf package.

A mapping is a message, a list a repeated field, ``Word`` the name of an enum's value, and the rest a scalar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

_ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}


class Word(str):
    """A value that is written without quotes."""

    __slots__ = ()


def to_text(message: Message) -> str:
    return "".join(f"{line}\n" for line in _lines(message))


def map_entries(entries: Mapping[str, Any]) -> list[Message]:
    """A map field, which the text format writes as repeated pairs."""
    return [{"key": key, "value": value} for key, value in entries.items()]


def _lines(message: Message) -> Iterator[str]:
    for field, value in message.items():
        if isinstance(value, Mapping):
            yield from _block(field, value)
        elif _holds_messages(value):
            for item in value:
                yield from _block(field, item)
        elif isinstance(value, (list, tuple)):
            yield f"{field}: [ {', '.join(map(_scalar, value))} ]" if value else f"{field}: [ ]"
        else:
            yield f"{field}: {_scalar(value)}"


def _block(field: str, message: Message) -> Iterator[str]:
    yield f"{field} {{"
    yield from (f"  {line}" for line in _lines(message))
    yield "}"


def _holds_messages(value: object) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _scalar(value: object) -> str:
    if isinstance(value, Word):
        return str(value)
    if isinstance(value, str):
        return f'"{_escaped(value)}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise TypeError(f"{value!r} cannot be written to a configuration")


def _escaped(text: str) -> str:
    """Escape all but printable ASCII in octal, always with three digits, since a digit may follow."""
    return "".join(_ESCAPES.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in text.encode())
