"""Types of values in expressions: which are one another's, and what two of them have in common.

Rules, which are those of Spark's ANSI mode except that text never becomes a number by itself:

- columns of Arrow types that Spark does not have are widened when they are read: unsigned integers, half floats, long
  strings, other units of time;
- of two integers the wider type counts; an integer and floating point make double; a decimal and an integer make a
  decimal that holds both; a decimal and floating point make double;
- a date becomes a timestamp beside one; a null becomes anything;
- structs, arrays and maps have a common type if they differ in what may be null alone.
"""

from __future__ import annotations

import pyarrow as pa

MAX_DIGITS = 38
INT_DIGITS = {1: 3, 2: 5, 4: 10, 8: 20}
"""Digits of a decimal that holds any integer of so many bytes, as Spark counts them."""
_SIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}
_WIDER = {
    **_SIGNED,
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}


def normal(dtype: pa.DataType) -> pa.DataType:
    """The type in which values of a column of type ``dtype`` are computed with."""
    if pa.types.is_dictionary(dtype):
        return normal(dtype.value_type)
    if pa.types.is_timestamp(dtype):
        return pa.timestamp("us", dtype.tz)
    if pa.types.is_duration(dtype):
        return pa.duration("us")
    if pa.types.is_fixed_size_binary(dtype):
        return pa.binary()
    if pa.types.is_fixed_size_list(dtype) or pa.types.is_large_list(dtype):
        return pa.list_(dtype.value_type)
    return _WIDER.get(dtype, dtype)


def shown(dtype: pa.DataType) -> str:
    """A type in the words of a schema."""
    return _WORDS.get(dtype, str(dtype))


_WORDS = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.duration("us"): "interval",
}


def is_number(dtype: pa.DataType) -> bool:
    """Whether values are integers, floating point or decimals."""
    return bool(pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype))


def is_moment(dtype: pa.DataType) -> bool:
    """Whether values are dates or timestamps."""
    return bool(pa.types.is_date(dtype) or pa.types.is_timestamp(dtype))


def decimal_for(dtype: pa.DataType) -> pa.DataType:
    """The decimal type that holds all values of an integer or decimal type."""
    return dtype if pa.types.is_decimal(dtype) else pa.decimal128(INT_DIGITS[dtype.byte_width], 0)


def bounded(precision: int, scale: int) -> pa.DataType:
    """A decimal type of at most 38 digits: where more are needed, decimal places beyond six give way."""
    if precision <= MAX_DIGITS:
        return pa.decimal128(precision, scale)
    whole = precision - scale
    return pa.decimal128(MAX_DIGITS, max(MAX_DIGITS - whole, min(scale, 6)))


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of values that may be of either type; ``None``: they have nothing in common."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if is_number(one) and is_number(other):
        return _common_number(one, other)
    if pa.types.is_date(one) and pa.types.is_timestamp(other):
        return other
    if pa.types.is_timestamp(one) and pa.types.is_date(other):
        return one
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other) and bool(one.tz) == bool(other.tz):
        return one
    return _common_nested(one, other)


def _common_nested(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Of structs, arrays and maps that differ in no more than which of their parts may be null."""
    types = pa.types
    if types.is_struct(one) and types.is_struct(other) and len(one) == len(other):
        fields = [_common_field(a, b) for a, b in zip(one, other, strict=True)]
        return None if any(field is None for field in fields) else pa.struct(fields)
    if types.is_list(one) and types.is_list(other):
        item = _common_field(one.value_field, other.value_field.with_name(one.value_field.name))
        return None if item is None else pa.list_(item)
    if types.is_map(one) and types.is_map(other):
        key = _common_field(one.key_field, other.key_field.with_name(one.key_field.name))
        item = _common_field(one.item_field, other.item_field.with_name(one.item_field.name))
        return None if key is None or item is None else pa.map_(key, item)
    return None


def _common_field(one: pa.Field, other: pa.Field) -> pa.Field | None:
    dtype = one.type if one.type == other.type else _common_nested(one.type, other.type)
    if dtype is None or one.name != other.name:
        return None
    return pa.field(one.name, dtype, one.nullable or other.nullable)


def _common_number(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(one) or pa.types.is_decimal(other):
        if pa.types.is_floating(one) or pa.types.is_floating(other):
            return pa.float64()
        a, b = decimal_for(one), decimal_for(other)
        scale = max(a.scale, b.scale)
        return bounded(max(a.precision - a.scale, b.precision - b.scale) + scale, scale)
    if pa.types.is_floating(one) or pa.types.is_floating(other):
        return pa.float64()
    return one if one.byte_width >= other.byte_width else other
