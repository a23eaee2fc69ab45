"""JSON that others have written: parsed, or ``ValueError``, whatever is in it."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from typing import Any, NoReturn


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
    """Raises ``TypeError`` for an attribute of ``found`` that does not fit the type of this name in ``hints``."""
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
    if origin is list:
        return isinstance(value, list) and (kinds == (Any,) or all(fits(one, kinds[0]) for one in value))
    if origin is dict:
        return isinstance(value, dict) and (kinds[1] is Any or all(fits(one, kinds[1]) for one in value.values()))
    return type(value) is hint
