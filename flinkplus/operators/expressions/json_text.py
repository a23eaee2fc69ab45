"""Structs, arrays and maps as JSON text, in the form of Spark's ``to_json``.

Rules: dates and times are text in ISO's form, with a zone where they have one; binary is base64; decimals are numbers
with all their digits; NaN and infinities are text. The keys of maps are text. Objects keep the order of fields.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from flinkplus.operators.expressions.casts import text_of_float

Write = Callable[[Any], str]


def json_writer(dtype: pa.DataType, with_nulls: bool) -> Write | None:
    """What writes a value of ``dtype``, as ``to_pylist`` gives it, as JSON; ``None``: it has no such form.

    ``with_nulls``: fields that are null are written; otherwise they are left out.
    """
    types = pa.types
    if types.is_list(dtype) or types.is_large_list(dtype) or types.is_fixed_size_list(dtype):
        item = json_writer(dtype.value_type, with_nulls)
        return None if item is None else lambda values: f"[{','.join(map(_or_null(item), values))}]"
    if types.is_struct(dtype):
        return _struct_writer(dtype, with_nulls)
    if types.is_map(dtype):
        return _map_writer(dtype, with_nulls)
    for is_kind, write in _WRITERS:
        if is_kind(dtype):
            return write
    return None


def _or_null(write: Write) -> Write:
    return lambda value: "null" if value is None else write(value)


def _struct_writer(dtype: pa.DataType, with_nulls: bool) -> Write | None:
    fields = []
    for field in dtype:
        write = json_writer(field.type, with_nulls)
        if write is None:
            return None
        fields.append((field.name, _text(field.name), _or_null(write)))

    def write_struct(value: dict[str, Any]) -> str:
        shown = [(name, write(value[key])) for key, name, write in fields if with_nulls or value[key] is not None]
        return f"{{{','.join(f'{name}:{text}' for name, text in shown)}}}"

    return write_struct


def _map_writer(dtype: pa.DataType, with_nulls: bool) -> Write | None:
    key, item = json_writer(dtype.key_type, with_nulls), json_writer(dtype.item_type, with_nulls)
    if key is None or item is None or pa.types.is_nested(dtype.key_type):
        return None
    write_key, write_item = key, _or_null(item)

    def key_text(value: Any) -> str:
        text = write_key(value)
        return text if text.startswith('"') else f'"{text}"'

    return lambda pairs: f"{{{','.join(f'{key_text(k)}:{write_item(v)}' for k, v in pairs)}}}"


def _text(value: str) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return _CONTROL.sub(_capital, text) if r"\u00" in text else text


_CONTROL = re.compile(r"\\(\\|u00[0-9a-f]{2})")
"""A backslash, or a control character, as JSON has them."""


def _capital(found: re.Match[str]) -> str:
    return found[0] if found[1] == "\\" else f"\\u{found[1][1:].upper()}"


def _moment(value: datetime.datetime) -> str:
    text = value.replace(tzinfo=None).isoformat(timespec="microseconds" if value.microsecond % 1000 else "milliseconds")
    offset = value.utcoffset()
    if offset is None:
        return f'"{text}"'
    minutes = round(offset.total_seconds() / 60)
    zone = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}" if minutes else "Z"
    return f'"{text}{zone}"'


def _number(value: float) -> str:
    return text_of_float(value) if math.isfinite(value) else f'"{text_of_float(value)}"'


def _short_number(value: float) -> str:
    return text_of_float(value, str(np.float32(value))) if math.isfinite(value) else _number(value)


_WRITERS: list[tuple[Callable[[pa.DataType], bool], Write]] = [
    (pa.types.is_boolean, lambda value: "true" if value else "false"),
    (pa.types.is_integer, str),
    (pa.types.is_float32, _short_number),
    (pa.types.is_floating, _number),
    (pa.types.is_decimal, lambda value: format(value, "f")),
    (pa.types.is_string, _text),
    (pa.types.is_large_string, _text),
    (pa.types.is_binary, lambda value: f'"{base64.b64encode(value).decode()}"'),
    (pa.types.is_large_binary, lambda value: f'"{base64.b64encode(value).decode()}"'),
    (pa.types.is_date, lambda value: f'"{value.isoformat()}"'),
    (pa.types.is_timestamp, _moment),
]


def json_column(column: pa.Array, with_nulls: bool) -> pa.Array:
    """A column of structs, arrays or maps as JSON text. Raises ``TypeError`` for types without such a form."""
    write = json_writer(column.type, with_nulls)
    if write is None:
        raise TypeError(f"{column.type} has no form in JSON")
    return pa.array([None if value is None else write(value) for value in column.to_pylist()], pa.string())
