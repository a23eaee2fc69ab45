"""Values as other types, by the rules of Spark's ANSI mode: what has no equivalent is an error, never another value.

``widened``: what happens by itself, where two types meet. ``cast``: what ``CAST`` does as well.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base import decimals
from flinkplus.operators.expressions.bound import (
    FAILURES,
    Bound,
    Kernel,
    RowValues,
    Values,
    applied,
    by_value,
    constant,
    on_arrays,
)
from flinkplus.operators.expressions.types import common_type, decimal_for, is_moment, is_number, normal, shown

WIDE = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_UP)
"""Exact for two decimals of 38 digits each, and what they become."""
_TRUE, _FALSE = {"t", "true", "y", "yes", "1"}, {"f", "false", "n", "no", "0"}
_ONE_DIGIT = {r"^(\d{4})-(\d)(-|$)": r"\1-0\2\3", r"^(\d{4}-\d{2})-(\d)([ T]|$)": r"\1-0\2\3"}
_ZONE = r"(Z|[+-]\d{2}:?\d{2})$"
_WHOLE = r"^[+-]?[0-9]+$"
_MOMENT = (
    r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"([ T]([01]\d|2[0-3])(:?[0-5]\d(:?[0-5]\d(\.\d{1,6})?)?)?)?(Z|[+-]\d{2}(:?\d{2})?)?$"
)
"""What may be a date or timestamp; there are none outside of it. The day may still not exist."""
_EXACT_WHOLE, _EXACT_POWER = 1 << 53, 10**22
"""Whole numbers, and powers of ten, up to which each is a double."""
SECOND_US = 1_000_000
Convert = Callable[[Bound, pa.DataType], Bound]


def widened(value: Bound, dtype: pa.DataType) -> Bound:
    """``value`` as a type that has room for it."""
    if value.dtype == dtype:
        return value
    if value.is_constant and is_number(value.dtype) and is_number(dtype):
        return constant(_number(value.constant, dtype), dtype)
    if is_moment(value.dtype) or (is_decimal(value.dtype) and is_floating(dtype)):
        return cast(value, dtype)
    if value.is_constant:
        return constant(pa.scalar(value.constant, value.dtype).cast(dtype).as_py(), dtype)
    return applied(dtype, lambda values: values.cast(dtype), value)


def _number(number: Any, dtype: pa.DataType) -> Any:
    if number is None:
        return None
    return float(number) if pa.types.is_floating(dtype) else number


def alike(what: str, *values: Bound) -> tuple[Bound, ...]:
    """``values`` as one type. Text that is a constant becomes a date or timestamp beside one. Raises
    ``ConfigurationError`` without a common type."""
    moment = next((value.dtype for value in values if is_moment(value.dtype)), None)
    if moment is not None:
        values = tuple(_text_as_moment(value, moment) for value in values)
    dtype = values[0].dtype
    for value in values[1:]:
        found = common_type(dtype, value.dtype)
        if found is None:
            raise ConfigurationError(f"{what} has no type for {shown(dtype)} and {shown(value.dtype)}: cast one")
        dtype = found
    return tuple(widened(value, dtype) for value in values)


def _text_as_moment(value: Bound, dtype: pa.DataType) -> Bound:
    return cast(value, dtype) if value.is_constant and pa.types.is_string(value.dtype) else value


def cast(value: Bound, dtype: pa.DataType, *, strict: bool = True) -> Bound:
    """``CAST(value AS dtype)``. Raises ``ConfigurationError`` for types that cannot be cast, and, if ``strict``, for a
    constant that has no equivalent."""
    source, target = value.dtype, normal(dtype)
    if source == target:
        return value
    if pa.types.is_null(source):
        return constant(None, target)
    for given, wanted, convert in _CASTS:
        if given(source) and wanted(target):
            found = convert(value, target)
            return _folded(found, strict) if value.is_constant else found
    raise ConfigurationError(f"{shown(source)} cannot be cast to {shown(target)}")


def _folded(value: Bound, strict: bool) -> Bound:
    """A constant that was cast, computed here. ``strict``: an error is raised; otherwise it becomes null."""
    rows = RowValues(pa.RecordBatch.from_arrays([pa.array([0])], names=["one"]), lambda: 0)
    try:
        return constant(value.array(rows)[0].as_py(), value.dtype)
    except FAILURES as error:
        if not strict:
            return constant(None, value.dtype)
        raise ConfigurationError(f"a constant cannot be cast: {error}") from error


def _to_whole(values: Values, dtype: pa.DataType) -> Values:
    return pc.trunc(values).cast(dtype)


def _decimal_to_whole(values: Values, dtype: pa.DataType) -> Values:
    wide = pa.decimal256(76, values.type.scale)
    return pc.trunc(values.cast(wide)).cast(pa.decimal256(76, 0)).cast(dtype)


def rescaled(number: decimal.Decimal, dtype: pa.DataType) -> decimal.Decimal:
    """A number with the decimal places of ``dtype``, rounded half up. Raises ``OverflowError`` for too many digits."""
    found = number.quantize(decimal.Decimal(1).scaleb(-dtype.scale, WIDE), context=WIDE)
    if len(found.as_tuple().digits) > dtype.precision and found:
        raise OverflowError(f"{number} does not fit {dtype}")
    return found


def _number_to_decimal(value: Bound, dtype: pa.DataType) -> Bound:
    if pa.types.is_integer(value.dtype) and decimal_for(value.dtype).precision <= dtype.precision - dtype.scale:
        return applied(dtype, lambda values: values.cast(decimal_for(values.type)).cast(dtype), value)

    def convert(number: Any) -> decimal.Decimal:
        exact = decimal.Decimal(repr(number) if isinstance(number, float) else number)
        if not exact.is_finite():
            raise OverflowError(f"{number} is no decimal")
        return rescaled(exact, dtype)

    return by_value(dtype, convert, value, fails=True)


def _decimal_to_decimal(value: Bound, dtype: pa.DataType) -> Bound:
    source = value.dtype
    if dtype.scale >= source.scale and dtype.precision - dtype.scale >= source.precision - source.scale:
        return applied(dtype, lambda values: values.cast(dtype), value)
    return by_value(dtype, lambda number: rescaled(number, dtype), value, fails=True)


def _decimal_to_float(value: Bound, dtype: pa.DataType) -> Bound:
    return on_arrays(dtype, lambda values: nearest_doubles(values).cast(dtype, safe=False), value)


def nearest_doubles(column: pa.Array) -> pa.Array:
    """The double that is nearest to each decimal. Arrow's own cast is often the one beside it."""
    whole, power = decimals.unscaled(column), 10**column.type.scale
    exact = whole.dtype == np.int64 and power <= _EXACT_POWER
    if exact and ((whole >= -_EXACT_WHOLE) & (whole <= _EXACT_WHOLE)).all():
        found = whole / float(power)  # of two numbers that are exact: rounded once
    else:
        found = np.array([number / power for number in whole.tolist()], np.float64)  # Python rounds once
    return pa.array(found, mask=np.asarray(column.is_null()))


def _text_to_decimal(text: str, dtype: pa.DataType) -> decimal.Decimal:
    try:
        number = decimal.Decimal(text.strip() if text.isascii() else "")
    except decimal.InvalidOperation as error:
        raise ValueError(f"{text!r} is no number") from error
    if not number.is_finite() or "_" in text:
        raise ValueError(f"{text!r} is no number")
    return rescaled(number, dtype)


def _text_to_bool(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(f"{text!r} is no boolean")
    return word in _TRUE


def _fitting(texts: pa.Array, pattern: str) -> pa.Array:
    """The texts that fit a pattern, and null for others."""
    return pc.if_else(pc.match_substring_regex(texts, pattern), texts, pa.scalar(None, pa.string()))


def all_fit(texts: pa.Array, pattern: str, what: str) -> pa.Array:
    """The texts. Raises ``ValueError`` unless all fit a pattern."""
    found = _fitting(texts, pattern)
    if found.null_count > texts.null_count:
        wrong = texts.filter(pc.and_(texts.is_valid(), found.is_null()))
        raise ValueError(f"{wrong[0].as_py()!r} is {what}")
    return texts


def by_pattern(
    dtype: pa.DataType, pattern: str, what: str, prepare: Callable[[pa.Array], pa.Array], value: Bound, then: Kernel
) -> Bound:
    """``then`` of the texts that ``prepare`` gives for ``value``, which must fit a pattern; others are ``what``.

    With TRY_CAST they are set aside by the pattern: looking for each of them by its error takes far longer.
    """
    return on_arrays(
        dtype,
        lambda texts: then(all_fit(prepare(texts), pattern, what)),
        value,
        fails=True,
        attempt=lambda texts: then(_fitting(prepare(texts), pattern)),
    )


def _text_to_whole(value: Bound, dtype: pa.DataType) -> Bound:
    def convert(texts: pa.Array) -> pa.Array:
        return pc.replace_substring_regex(texts, r"^\+", "").cast(dtype)

    return by_pattern(dtype, _WHOLE, "no whole number", pc.utf8_trim_whitespace, value, convert)


def _text_to_time(value: Bound, dtype: pa.DataType) -> Bound:
    def convert(texts: pa.Array) -> pa.Array:
        if pa.types.is_date(dtype):
            return _moment_to_date(text_to_moment(texts, pa.timestamp("us")))
        return text_to_moment(texts, dtype)

    return by_pattern(dtype, _MOMENT, "no date or timestamp", _with_two_digits, value, convert)


def _with_two_digits(texts: pa.Array) -> pa.Array:
    """Texts of dates with two digits for month and day."""
    texts = pc.utf8_trim_whitespace(texts)
    for month_or_day, padded in _ONE_DIGIT.items():
        texts = pc.replace_substring_regex(texts, month_or_day, padded)
    return texts


def text_to_moment(text: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Text with a zone, or, for a date or a time that has none, without, as a timestamp."""
    has_zone = pc.match_substring_regex(text, _ZONE)
    dated = pc.and_kleene(has_zone, pc.match_substring(text, ":"))
    plain = pc.if_else(dated, pa.scalar(None, pa.string()), text).cast(pa.timestamp("us"))
    zoned = pc.if_else(dated, text, pa.scalar(None, pa.string())).cast(pa.timestamp("us", "UTC"))
    if dtype.tz is None:
        return pc.coalesce(plain, zoned.cast(pa.timestamp("us")))
    return pc.coalesce(instant_of(plain, dtype.tz), zoned.cast(dtype))


def text_of_float(number: float, digits: str | None = None) -> str:
    """A floating point number as Java writes it: ``1.0``, ``1.0E10``, ``NaN``, ``Infinity``."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0:
        return "-0.0" if math.copysign(1, number) < 0 else "0.0"
    sign, found, exponent = decimal.Decimal(digits or repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text, point = "".join(map(str, found)), len(found) + exponent
    if -3 < point <= 7:
        padded = text.ljust(point, "0") if point > 0 else "0" * (1 - point) + text
        at = max(point, 1)
        shown_text = f"{padded[:at]}.{padded[at:] or '0'}"
    else:
        shown_text = f"{text[0]}.{text[1:] or '0'}E{point - 1}"
    return f"{'-' if sign else ''}{shown_text}"


def _float_to_text(value: Bound, dtype: pa.DataType) -> Bound:
    if value.dtype == pa.float32():
        return by_value(dtype, lambda number: text_of_float(number, str(np.float32(number))), value)
    return by_value(dtype, text_of_float, value)


def _moment_to_text(values: Values) -> Values:
    if pa.types.is_date(values.type):
        return pc.strftime(values.cast(pa.timestamp("s")), "%Y-%m-%d")
    text = pc.strftime(values, "%Y-%m-%d %H:%M:%S")
    return pc.replace_substring_regex(text, r"\.?0*$", "") if values.type.unit == "s" else _short_fraction(text)


def _short_fraction(text: Values) -> Values:
    """Without zeros at the end of the fraction."""
    return pc.replace_substring_regex(text, r"(\.\d*[1-9])0+$|\.0+$", r"\1")


def _decimal_to_text(number: decimal.Decimal) -> str:
    return format(number, "f")


def instant_of(local: Values, zone: str) -> Values:
    """The instants at which the clock of a zone shows ``local``, which has no zone, as timestamps of that zone.

    A time that is repeated is the earlier one. One that is left out is as long after the gap's begin as it says.
    """
    dtype = pa.timestamp("us", zone)
    if zone == "UTC":
        return local.cast(dtype)
    before = pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="earliest")
    gap = pc.subtract(local.cast(pa.int64()), pc.local_timestamp(before).cast(pa.int64()))
    return _of_micros(pc.add(before.cast(pa.int64()), gap), dtype)


def _of_micros(micros: Values, dtype: pa.DataType) -> Values:
    return micros.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")).cast(dtype)


def _date_to_moment(values: Values, dtype: pa.DataType) -> Values:
    local = values.cast(pa.timestamp("us"))
    return instant_of(local, dtype.tz) if dtype.tz else local


def _moment_to_date(values: Values) -> Values:
    local = pc.local_timestamp(values) if values.type.tz else values
    return pc.floor_temporal(local, unit="day").cast(pa.date32())


def _moment_to_moment(values: Values, dtype: pa.DataType) -> Values:
    if values.type.tz and not dtype.tz:
        return pc.local_timestamp(values)
    return values.cast(dtype) if values.type.tz else instant_of(values, dtype.tz)


def _moment_to_number(values: Values, dtype: pa.DataType) -> Values:
    micros = values.cast(pa.int64())
    if pa.types.is_integer(dtype):
        return whole_quotient(micros, SECOND_US).cast(dtype)
    return pc.divide(micros.cast(pa.float64()), float(SECOND_US)).cast(dtype)


def whole_quotient(numbers: Values, by: int) -> Values:
    """Whole numbers divided by one that is positive, rounded down."""
    if isinstance(numbers, pa.Scalar):
        return whole_quotient(pa.array([numbers.as_py()], pa.int64()), by)[0]
    found = np.asarray(numbers.fill_null(0)) // by
    return pa.array(found, mask=np.asarray(numbers.is_null()))


def _number_to_moment(values: Values, dtype: pa.DataType) -> Values:
    micros = pc.multiply_checked(values.cast(pa.int64()), SECOND_US)
    return micros.cast(pa.timestamp("us")).cast(pa.timestamp("us", dtype.tz) if dtype.tz else dtype)


def _kernel(function: Callable[..., Values], *, fails: bool, typed: bool = True) -> Convert:
    if typed:
        return lambda value, dtype: applied(dtype, lambda values: function(values, dtype), value, fails=fails)
    return lambda value, dtype: applied(dtype, function, value, fails=fails)


def _values(function: Callable[..., Any], *, typed: bool = False) -> Convert:
    if typed:
        return lambda value, dtype: by_value(dtype, lambda one: function(one, dtype), value, fails=True)
    return lambda value, dtype: by_value(dtype, function, value, fails=True)


def _plain_cast(values: Values, dtype: pa.DataType) -> Values:
    return values.cast(dtype)


is_integer, is_floating, is_decimal = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal
is_string, is_boolean, is_date = pa.types.is_string, pa.types.is_boolean, pa.types.is_date
is_timestamp, is_binary = pa.types.is_timestamp, pa.types.is_binary


def _text_to_float(text: str) -> float:
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is no number")
    return float(text.strip())


_CASTS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool], Convert]] = [
    (is_integer, is_integer, _kernel(_plain_cast, fails=True)),
    (is_integer, is_floating, _kernel(lambda values, dtype: values.cast(dtype, safe=False), fails=False)),
    (is_floating, is_floating, _kernel(lambda values, dtype: values.cast(dtype, safe=False), fails=False)),
    (is_floating, is_integer, _kernel(_to_whole, fails=True)),
    (is_decimal, is_decimal, _decimal_to_decimal),
    (is_decimal, is_integer, _kernel(_decimal_to_whole, fails=True)),
    (is_decimal, is_floating, _decimal_to_float),
    (is_decimal, is_string, _values(_decimal_to_text)),
    (is_number, is_decimal, _number_to_decimal),
    (
        is_number,
        is_boolean,
        _kernel(lambda values: pc.not_equal(values, pa.scalar(0).cast(values.type)), fails=False, typed=False),
    ),
    (is_boolean, is_integer, _kernel(_plain_cast, fails=False)),
    (is_boolean, is_floating, _kernel(lambda values, dtype: values.cast(pa.int8()).cast(dtype), fails=False)),
    (is_boolean, is_string, _kernel(_plain_cast, fails=False)),
    (is_integer, is_string, _kernel(_plain_cast, fails=False)),
    (is_floating, is_string, _float_to_text),
    (is_string, is_integer, _text_to_whole),
    (is_string, is_floating, _values(_text_to_float)),
    (is_string, is_decimal, _values(_text_to_decimal, typed=True)),
    (is_string, is_boolean, _values(_text_to_bool)),
    (is_string, lambda dtype: is_timestamp(dtype) or is_date(dtype), _text_to_time),
    (is_string, is_binary, _kernel(_plain_cast, fails=False)),
    (is_binary, is_string, _kernel(_plain_cast, fails=True)),
    (is_moment, is_string, _kernel(_moment_to_text, fails=False, typed=False)),
    (is_date, is_timestamp, _kernel(_date_to_moment, fails=False)),
    (is_timestamp, is_date, _kernel(_moment_to_date, fails=False, typed=False)),
    (is_timestamp, is_timestamp, _kernel(_moment_to_moment, fails=False)),
    (is_timestamp, is_number, _kernel(_moment_to_number, fails=True)),
    (is_integer, is_timestamp, _kernel(_number_to_moment, fails=True)),
]

__all__ = [
    "WIDE",
    "alike",
    "by_pattern",
    "cast",
    "instant_of",
    "nearest_doubles",
    "rescaled",
    "text_of_float",
    "text_to_moment",
    "whole_quotient",
    "widened",
]
