"""From JSON back to dataclasses, strictly: a field that is missing, unknown or of another type is a ValueError."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Literal, TypeVar

T = TypeVar("T")

# JSON has no NaN and no infinity: such numbers were written as null, and stay None.
PLAIN: dict[Any, tuple[type, ...]] = {str: (str,), bool: (bool,), int: (int,), float: (int, float, type(None))}


def decode(kind: type[T], value: Any) -> T:
    """An instance of the dataclass ``kind`` from the object that ``dataclasses.asdict`` and JSON made of one."""
    found: T = _decode(kind, value, "certificate")
    return found


def _decode(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _object(kind, value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _decode(arguments[0], value, where)
    if origin is Literal:
        return _checked(value, isinstance(value, str) and value in arguments, where, " or ".join(arguments))
    if origin is tuple:
        return tuple(_items(arguments[0], value, where))
    if origin is list:
        return _items(arguments[0], value, where)
    if origin is dict:
        _checked(value, isinstance(value, dict), where, "an object")
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    return _checked(value, type(value) in PLAIN[kind], where, kind.__name__)


def _items(kind: Any, value: Any, where: str) -> list[Any]:
    _checked(value, isinstance(value, list), where, "a list")
    return [_decode(kind, item, f"{where}[{index}]") for index, item in enumerate(value)]


def _object(kind: Any, value: Any, where: str) -> Any:
    """What the dataclass has a default for may not be left out either: it was written."""
    _checked(value, isinstance(value, dict), where, "an object")
    names = [field.name for field in dataclasses.fields(kind)]
    if set(names) != set(value):
        missing, unknown = sorted(set(names) - set(value)), sorted(set(value) - set(names))
        raise ValueError(f"{where} lacks {missing or 'nothing'} and has the unknown fields {unknown or 'none'}")
    hints = typing.get_type_hints(kind)
    return kind(**{name: _decode(hints[name], value[name], f"{where}.{name}") for name in names})


def _checked(value: Any, valid: bool, where: str, expected: str) -> Any:
    if not valid:
        raise ValueError(f"{where} is {str(value)[:60]!r}, expected {expected}")
    return value
