"""From JSON back to dataclasses, strictly: a field that is unknown or of another type is a ValueError."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import MISSING
from pathlib import Path
from typing import Any, Literal, TypeVar

T = TypeVar("T")

PLAIN: dict[Any, tuple[type, ...]] = {str: (str,), Path: (str,), bool: (bool,), int: (int,), float: (int, float)}


def decode(kind: type[T], value: Any, where: str, *, whole: bool) -> T:
    """Decode an instance of the dataclass ``kind`` from JSON; ``where`` is its name in errors.

    ``whole`` is for the output of ``dataclasses.asdict`` as JSON: every field is there, also where it is the
    default, and a number that JSON lacks, NaN or an infinity, was written as null and stays None. Otherwise
    it was written by hand, perhaps in YAML, which reads the number 1e-5 as a string.
    """
    found: T = _Decoder(whole).decode(kind, value, where)
    return found


class _Decoder:
    def __init__(self, whole: bool) -> None:
        self._whole = whole

    def decode(self, kind: Any, value: Any, where: str) -> Any:
        if kind is Any:
            return value
        if dataclasses.is_dataclass(kind):
            return self._object(kind, value, where)
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            return self._either(arguments, value, where)
        if origin is Literal:
            return _checked(value, isinstance(value, str) and value in arguments, where, " or ".join(arguments))
        if origin is tuple:
            return tuple(self._items(arguments[0], value, where))
        if origin is list:
            return self._items(arguments[0], value, where)
        if origin is dict:
            _checked(value, isinstance(value, dict), where, "an object")
            return {key: self.decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
        if kind is float and value is None and self._whole:
            return None
        if kind is float and isinstance(value, str) and not self._whole:
            value = _number(value)
        _checked(value, type(value) in PLAIN[kind], where, kind.__name__)
        return Path(value) if kind is Path else value

    def _either(self, kinds: tuple[Any, ...], value: Any, where: str) -> Any:
        if value is None and type(None) in kinds:
            return None
        return self.decode(_fitting(kinds, value), value, where)

    def _items(self, kind: Any, value: Any, where: str) -> list[Any]:
        _checked(value, isinstance(value, list), where, "a list")
        return [self.decode(kind, item, f"{where}[{index}]") for index, item in enumerate(value)]

    def _object(self, kind: Any, value: Any, where: str) -> Any:
        _checked(value, isinstance(value, dict), where, "an object")
        fields = dataclasses.fields(kind)
        optional = {f.name for f in fields if f.default is not MISSING or f.default_factory is not MISSING}
        needed = {field.name for field in fields} - (set() if self._whole else optional)
        missing, unknown = sorted(needed - set(value)), sorted(set(value) - {field.name for field in fields})
        if missing or unknown:
            raise ValueError(f"{where} lacks {missing or 'nothing'} and has the unknown fields {unknown or 'none'}")
        hints = typing.get_type_hints(kind)
        return kind(**{name: self.decode(hints[name], item, f"{where}.{name}") for name, item in value.items()})


def _fitting(kinds: tuple[Any, ...], value: Any) -> Any:
    return next((kind for kind in kinds if type(value) in PLAIN.get(kind, ())), kinds[0])


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _checked(value: Any, valid: bool, where: str, expected: str) -> Any:
    if not valid:
        raise ValueError(f"{where} is {str(value)[:60]!r}, expected {expected}")
    return value
