"""Keys of maps as bytes: of values of Python, so that equal keys have equal bytes, and can be read back.

Rules:
- a key is ``None``, a bool, int, float, str, bytes, date, datetime or Decimal, or a tuple of such (a row is one);
- keys of different types are different: 1, 1.0 and True are three keys. 0.0 is equal to -0.0, NaN to NaN, and
  ``Decimal("1.0")`` to ``Decimal("1")``. A datetime with a zone is its instant, and is read back in UTC;
- bytes sort by type, then as the values do; Decimals and whole numbers beyond 64 bits in an order of their own;
- the form is stored: a change of it is a change of ``MAP_FORM``.
"""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from collections.abc import Callable
from typing import Any

_NONE, _FALSE, _TRUE, _INT, _LARGE, _FLOAT, _DECIMAL, _TEXT, _BYTES, _DATE, _NAIVE, _INSTANT, _TUPLE = range(1, 14)
_END = 0
"""Ends a tuple; no value begins with it."""
_SIGN = 1 << 63
_LONG, _BITS = struct.Struct(">Q"), struct.Struct(">d")
_UTC = datetime.timezone.utc
_NAIVE_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH = _NAIVE_EPOCH.replace(tzinfo=_UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def key_bytes(key: Any) -> bytes:
    """The bytes of a key. Raises ``TypeError`` for another type."""
    encode = _ENCODERS.get(type(key))
    if encode is None:
        for kind, found in _ENCODERS.items():
            if kind not in (bool, type(None)) and isinstance(key, kind):
                encode = found
                break
        else:
            raise TypeError(
                f"a key of a map is None, a bool, int, float, str, bytes, date, datetime or Decimal, or a tuple of "
                f"these, not a {type(key).__name__}"
            )
    return encode(key)


def key_value(data: bytes) -> Any:
    """The inverse of ``key_bytes``; a row is a tuple. Raises ``ValueError`` for bytes that are no key."""
    try:
        value, end = _read(data, 0)
    except (IndexError, struct.error, OverflowError, decimal.InvalidOperation) as error:
        raise ValueError(f"no key of a map: {error}") from error
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes behind a key of a map")
    return value


def _ordered(number: int) -> bytes:
    return _LONG.pack(number + _SIGN)


def _int(value: int) -> bytes:
    if -_SIGN <= value < _SIGN:
        return bytes([_INT]) + _ordered(value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    return bytes([_LARGE]) + _LONG.pack(len(data)) + data


def _float(value: float) -> bytes:
    value = math.nan if value != value else value + 0.0
    (bits,) = _LONG.unpack(_BITS.pack(value))
    return bytes([_FLOAT]) + _LONG.pack(bits ^ (2 * _SIGN - 1) if bits & _SIGN else bits | _SIGN)


def _escaped(kind: int, data: bytes) -> bytes:
    return bytes([kind]) + data.replace(b"\0", b"\0\xff") + b"\0\1"


def _decimal(value: decimal.Decimal) -> bytes:
    if not value.is_finite():
        return _escaped(_DECIMAL, str(value).encode())
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    short = text.rstrip("0")
    exponent = exponent + len(text) - len(short) if short else 0
    return _escaped(_DECIMAL, f"{'-' if sign and short else ''}{short or '0'}E{exponent}".encode())


def _moment(value: datetime.datetime) -> bytes:
    if value.tzinfo is None:
        return bytes([_NAIVE]) + _ordered((value - _NAIVE_EPOCH) // _MICROSECOND)
    return bytes([_INSTANT]) + _ordered((value - _EPOCH) // _MICROSECOND)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: bytes([_NONE]),
    bool: lambda value: bytes([_TRUE if value else _FALSE]),
    int: _int,
    float: _float,
    str: lambda value: _escaped(_TEXT, value.encode()),
    bytes: lambda value: _escaped(_BYTES, value),
    datetime.datetime: _moment,  # before date, which it is as well
    datetime.date: lambda value: bytes([_DATE]) + _ordered(value.toordinal()),
    decimal.Decimal: _decimal,
    tuple: lambda value: bytes([_TUPLE]) + b"".join(map(key_bytes, value)) + bytes([_END]),
}


def _read(data: bytes, at: int) -> tuple[Any, int]:
    """The value at byte ``at``, and the position behind it."""
    kind, at = data[at], at + 1
    if kind in (_NONE, _FALSE, _TRUE):
        return {_NONE: None, _FALSE: False, _TRUE: True}[kind], at
    if kind in (_TEXT, _BYTES, _DECIMAL):
        end = at
        while data[end] or data[end + 1] == 0xFF:
            end += 1 if data[end] else 2
        content = data[at:end].replace(b"\0\xff", b"\0")
        value = content if kind == _BYTES else content.decode()
        return decimal.Decimal(value) if kind == _DECIMAL and isinstance(value, str) else value, end + 2
    if kind == _TUPLE:
        parts: list[Any] = []
        while data[at] != _END:
            part, at = _read(data, at)
            parts.append(part)
        return tuple(parts), at + 1
    (number,) = _LONG.unpack_from(data, at)
    at += _LONG.size
    if kind == _LARGE:
        if at + number > len(data):
            raise IndexError("it is too short")
        return int.from_bytes(data[at : at + number], "big", signed=True), at + number
    return _fixed(kind, number), at


def _fixed(kind: int, number: int) -> Any:
    """A value of 64 bits."""
    if kind == _FLOAT:
        return _BITS.unpack(_LONG.pack(number ^ _SIGN if number & _SIGN else number ^ (2 * _SIGN - 1)))[0]
    signed = number - _SIGN
    if kind == _INT:
        return signed
    if kind == _DATE:
        return datetime.date.fromordinal(signed)
    if kind == _NAIVE:
        return _NAIVE_EPOCH + signed * _MICROSECOND
    if kind == _INSTANT:
        return _EPOCH + signed * _MICROSECOND
    raise ValueError(f"no key of a map: it begins with {kind}")
