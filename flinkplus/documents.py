"""Untrusted JSON: parsed, or ``ValueError`` for any content; dataclasses that are JSON objects."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, NoReturn, cast

from typing_extensions import Self

from flinkplus.errors import FlinkPlusError
from flinkplus.printable import printable


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_parse = json.JSONDecoder(parse_constant=_refuse).decode


def parse_document(data: bytes | bytearray | memoryview) -> Any:
    """The value in UTF-8 JSON. Raises ``ValueError``, also for what is nested too deeply, NaN and infinities."""
    try:
        return _parse(str(data, "utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def whole(value: object) -> int:
    """``value``, a whole number. Raises ``TypeError``."""
    if type(value) is not int:
        raise TypeError(f"{value!r:.100} is no whole number")
    return value


def check_fields(found: object, hints: Mapping[str, Any]) -> None:
    """Raises ``TypeError`` for an attribute of ``found`` that does not fit its type in ``hints``."""
    for name, hint in hints.items():
        if not fits(getattr(found, name), hint):
            raise TypeError(f"{name} of {type(found).__name__} is something else")


def fits(value: Any, hint: Any) -> bool:
    """Whether ``value``, of parsed JSON, is what the type ``hint`` of a field says that it holds."""
    if hint is Any:
        return True
    if hint is float:
        return type(value) in (int, float)
    kinds = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return any(fits(value, kind) for kind in kinds)
    origin = typing.get_origin(hint)
    if origin in (list, tuple):
        return isinstance(value, origin) and (kinds[0] is Any or all(fits(one, kinds[0]) for one in value))
    if origin is dict:
        return isinstance(value, dict) and (kinds[1] is Any or all(fits(one, kinds[1]) for one in value.values()))
    return type(value) is hint


class Document:
    """A dataclass that is written as a JSON object: each field under its name, all of them.

    ``FORMAT``: the number that is written with it and that a reader demands; 0: what it is a part of has one.
    ``REFUSED``: what ``from_json`` raises for anything that ``to_json`` does not give.
    """

    __slots__ = ()
    FORMAT: ClassVar[int] = 0
    REFUSED: ClassVar[type[Exception]] = ValueError

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """The document in parsed JSON, of an equal type in every field. One with a default may be missing."""
        try:
            values = {**document}
            if cls.FORMAT:
                found = values.pop("format", None)
                if type(found) is not int or found != cls.FORMAT:
                    raise ValueError(f"its format is {found!r:.100}, and this program reads {cls.FORMAT}")
            for name, read in readers(cls).items():
                if name in values:
                    values[name] = read(values[name])
            record = cast(Any, cls)(**values)
            check_fields(record, hints_of(cls))
            record.check_names()
        except (TypeError, ValueError, FlinkPlusError) as error:
            raise cls.REFUSED(f"malformed {_words(cls)}: {printable(error, 400)}") from error
        return cast(Self, record)

    def to_json(self) -> dict[str, Any]:
        """The inverse of ``from_json``."""
        document = {"format": self.FORMAT} if self.FORMAT else {}
        nested = readers(type(self))
        for name in hints_of(type(self)):
            value = getattr(self, name)
            document[name] = _written(value) if name in nested else value
        return document

    def check_names(self) -> None:
        """Raise ``UnsafeName`` for a name that may become a part of a path and must not."""


def _words(cls: type[Any]) -> str:
    return re.sub("(?<!^)(?=[A-Z])", " ", cls.__name__).lower()


def hints_of(cls: Any) -> dict[str, Any]:
    """The fields of a dataclass and their types, in their order."""
    return _layout(cls)[0]


def readers(cls: Any) -> dict[str, Callable[[Any], Any]]:
    """What makes the values of those fields of a dataclass that are not parsed JSON: documents and tuples."""
    return _layout(cls)[1]


@cache
def _layout(cls: Any) -> tuple[dict[str, Any], dict[str, Callable[[Any], Any]]]:
    found = typing.get_type_hints(cls)
    hints = {field.name: found[field.name] for field in dataclasses.fields(cls)}
    made = {name: _reader(hint) for name, hint in hints.items()}
    return hints, {name: read for name, read in made.items() if read is not None}


def _reader(hint: Any) -> Callable[[Any], Any] | None:
    origin, kinds = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        return hint.from_json if isinstance(hint, type) and issubclass(hint, Document) else None
    one = _reader(kinds[-1] if origin is dict else kinds[0])
    if origin is tuple:
        return lambda value: tuple(map(one, value) if one else value) if type(value) is list else value
    if one is None:
        return None
    if origin is dict:
        return lambda value: {name: one(each) for name, each in value.items()} if type(value) is dict else value
    return lambda value: None if value is None else one(value)


def _written(value: Any) -> Any:
    if isinstance(value, Document):
        return value.to_json()
    if isinstance(value, tuple):
        return [_written(one) for one in value]
    if isinstance(value, dict):
        return {name: _written(one) for name, one in value.items()}
    return value
