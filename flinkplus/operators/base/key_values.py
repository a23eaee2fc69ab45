"""Keys as values: the inverse of ``keys.row_keys``, and the key that a user has typed.

Rule: what ``row_keys`` makes of the values that are read here is the same key again. Values of one key that differ
(``-0.0`` and ``0.0``, the NaNs) become one of them.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flinkplus.errors import ConfigurationError, CorruptState
from flinkplus.operators.base import decimals
from flinkplus.operators.base.keys import row_keys
from flinkplus.printable import printable

_NULL_TEXT = b"\xff"
_WIDTH = 8
_SIGN = np.uint64(1 << 63)
_LENGTH = struct.Struct(">I")


def key_columns(keys: Sequence[bytes], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """The values of each key column. Raises ``CorruptState`` for bytes that are no key of these types."""
    try:
        if len(types) == 1:
            return [_column(keys, types[0])]
        parts = list(zip(*(_split(key, len(types)) for key in keys), strict=True)) or [()] * len(types)
        return [_column(part, dtype) for part, dtype in zip(parts, types, strict=True)]
    except (ValueError, struct.error, OverflowError) as error:  # pa.ArrowInvalid is a ValueError
        shown = ", ".join(map(str, types))
        raise CorruptState(f"the state has a key that is no key of type {shown}: {printable(error)}") from error


def _split(key: bytes, columns: int) -> tuple[bytes | None, ...]:
    """The parts of a key of several columns; ``None`` for a null."""
    parts: list[bytes | None] = []
    at = 0
    while at < len(key):
        if key[at] == 0:
            parts.append(None)
            at += 1
            continue
        (length,) = _LENGTH.unpack_from(key, at + 1)
        begin = at + 1 + _LENGTH.size
        at = begin + length
        if at > len(key):
            raise ValueError("it is too short")
        parts.append(key[begin:at])
    if len(parts) != columns:
        raise ValueError(f"it has {len(parts)} parts instead of {columns}")
    return tuple(parts)


def _column(parts: Sequence[bytes | None], dtype: pa.DataType) -> pa.Array:
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        return pa.array([None if part == _NULL_TEXT else part for part in parts], pa.binary()).cast(dtype)
    if pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype):
        return pa.array([_unescaped(part) for part in parts], dtype)
    width = decimals.WIDTH if decimals.is_decimal(dtype) else _WIDTH
    null = np.array([not part for part in parts], np.bool_)
    if any(part and len(part) != width for part in parts):
        raise ValueError(f"it does not have {width} bytes")
    data = b"".join(part or bytes(width) for part in parts)
    if decimals.is_decimal(dtype):
        numbers = [int.from_bytes(data[at : at + width], "big") - (1 << 127) for at in range(0, len(data), width)]
        filled = [0 if none else number for number, none in zip(numbers, null.tolist(), strict=True)]
        return decimals.from_unscaled(filled, dtype, null)
    return _numbers(np.frombuffer(data, ">u8").astype(np.uint64), dtype, null)


def _unescaped(part: bytes | None) -> bytes | None:
    if part is None or part[:1] != _NULL_TEXT:
        return part
    return part[1:] if len(part) > 1 else None


def _numbers(ordered: np.ndarray, dtype: pa.DataType, null: np.ndarray) -> pa.Array:
    """The inverse of the order of numbers."""
    if pa.types.is_floating(dtype):
        bits = np.where(ordered & _SIGN, ordered ^ _SIGN, ~ordered)
        return pa.array(np.where(null, 0.0, bits.view(np.float64)), pa.float64(), mask=null).cast(dtype)
    if pa.types.is_uint64(dtype):
        return pa.array(ordered, dtype, mask=null)
    signed = np.where(null, 0, (ordered ^ _SIGN).view(np.int64))
    if pa.types.is_boolean(dtype):
        return pa.array(signed != 0, dtype, mask=null)
    if pa.types.is_temporal(dtype):
        counted = pa.array(signed, pa.int64(), mask=null)
        return (counted.cast(pa.int32()) if dtype.bit_width == 32 else counted).view(dtype)
    return pa.array(signed, pa.int64(), mask=null).cast(dtype)


def key_of(given: Any, fields: Sequence[pa.Field]) -> bytes:
    """The bytes of a key that a user gives: a value for one column, a tuple or list, or a dict by column.

    A text is the value itself where the only column is text; otherwise it is JSON, or the value as text. A JSON object
    with exactly the key columns is always taken as that. Raises ``ConfigurationError``.
    """
    values = _values(given, fields)
    arrays = [_array(value, field) for value, field in zip(values, fields, strict=True)]
    if not arrays:
        return b""
    key: bytes = row_keys(
        pa.RecordBatch.from_arrays(arrays, names=[f"{at}" for at in range(len(arrays))]),
        [f"{at}" for at in range(len(arrays))],
    )[0].as_py()
    return key


def _values(given: Any, fields: Sequence[pa.Field]) -> list[Any]:
    names = [field.name for field in fields]
    parsed = _parsed(given) if isinstance(given, str) else given
    if isinstance(parsed, Mapping):
        if sorted(parsed) == sorted(names):
            return [parsed[name] for name in names]
        if not isinstance(given, str) or len(fields) != 1:
            raise ConfigurationError(f"key {printable(given)}: the key columns are {names}")
    if len(fields) == 1:
        takes_text = isinstance(given, str) and (_is_text(fields[0].type) or isinstance(parsed, (list, dict)))
        return [given if takes_text else parsed]
    if not isinstance(parsed, (list, tuple)) or len(parsed) != len(fields):
        raise ConfigurationError(
            f"key {printable(given)}: the key has the columns {names}; give a JSON array of {len(names)} values, or a "
            "JSON object"
        )
    return list(parsed)


def _parsed(text: str) -> Any:
    """What a text says as JSON; the text, if it is no JSON."""
    try:
        return json.loads(text, parse_float=str)
    except (ValueError, RecursionError):
        return text


def _is_text(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))


def _array(value: Any, field: pa.Field) -> pa.Array:
    dtype = field.type
    try:
        if isinstance(value, str) and not _is_text(dtype):
            if pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype):
                return pa.array([base64.b64decode(value, validate=True)], dtype)
            if pa.types.is_time(dtype):
                return pa.array([datetime.time.fromisoformat(value)], dtype)
            return pa.array([value]).cast(dtype)
        if isinstance(value, int) and not isinstance(value, bool) and decimals.is_decimal(dtype):
            return pa.array([str(value)]).cast(dtype)
        return pa.array([value], dtype)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, binascii.Error) as error:
        raise ConfigurationError(
            f"key column {field.name!r} is {dtype}, and {printable(value)!r} cannot be read as that: {printable(error)}"
        ) from error
