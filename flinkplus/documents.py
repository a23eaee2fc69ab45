"""JSON that others have written: parsed, or ``ValueError``, whatever is in it."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


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
