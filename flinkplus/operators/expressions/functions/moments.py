"""Dates and timestamps.

Rules: the parts of a timestamp (its hour, its day) are those of UTC, or of the time zone that its column was declared
with; the session of Spark has no say. A timestamp_ntz has no zone. ``current_timestamp`` is the time of the step, to
the millisecond, which a replay repeats.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.errors import ConfigurationError
from flinkplus.operators.expressions.bound import (
    Bound,
    RowValues,
    Values,
    applied,
    attempted,
    by_value,
    constant_of,
    on_arrays,
)
from flinkplus.operators.expressions.casts import (
    SECOND_US,
    by_pattern,
    cast,
    instant_of,
    text_to_moment,
    whole_quotient,
)
from flinkplus.operators.expressions.functions.registry import check, function
from flinkplus.operators.expressions.types import is_moment, shown

DATE, INT, LONG = pa.date32(), pa.int32(), pa.int64()
STAMP, LOCAL_STAMP = pa.timestamp("us", "UTC"), pa.timestamp("us")
DAY = datetime.timedelta(days=1)


def shifted(moment: Bound, by: Bound, *, backwards: bool) -> Bound:
    """A date or timestamp, later or (``backwards``) earlier by an interval, or a date by whole days."""
    if pa.types.is_integer(by.dtype) and pa.types.is_date(moment.dtype):
        return _days_later(moment, by, -1 if backwards else 1)
    if not pa.types.is_duration(by.dtype):
        what = (
            "subtract unix_millis(...) of both" if is_moment(by.dtype) else "add an interval, such as interval 1 hour"
        )
        raise ConfigurationError(f"{shown(moment.dtype)} and {shown(by.dtype)} cannot be combined: {what}")
    if pa.types.is_date(moment.dtype):
        moment = cast(moment, STAMP)
    kernel = pc.subtract_checked if backwards else pc.add_checked
    return applied(moment.dtype, kernel, moment, by, fails=True)


def _days_later(date: Bound, days: Bound, sign: int) -> Bound:
    date, days = _date(date), cast(days, LONG)

    def kernel(dates: Values, count: Values) -> Values:
        return pc.add_checked(dates.cast(INT).cast(LONG), pc.multiply_checked(count, sign)).cast(INT).cast(DATE)

    return applied(DATE, kernel, date, days, fails=True)


def _date(value: Bound) -> Bound:
    if pa.types.is_string(value.dtype):
        return cast(value, DATE)
    check(value, is_moment, "a date or timestamp")
    return cast(value, DATE)


def _moment(value: Bound) -> Bound:
    """A value with parts: a constant text is a timestamp."""
    if pa.types.is_string(value.dtype) and value.is_constant:
        return cast(value, STAMP)
    check(value, is_moment, "a date or timestamp")
    return value


def _on_the_clock(value: Bound) -> Bound:
    """``value``, as a timestamp without a zone where its zone is UTC: Arrow takes parts of those much faster."""
    is_utc = pa.types.is_timestamp(value.dtype) and value.dtype.tz == "UTC"
    return applied(LOCAL_STAMP, lambda values: values.cast(LOCAL_STAMP), value) if is_utc else value


def _timed(value: Bound) -> Bound:
    value = _moment(value)
    return cast(value, LOCAL_STAMP) if pa.types.is_date(value.dtype) else value


def _part(kernel: Callable[..., Values], convert: Callable[[Bound], Bound]) -> Callable[[Bound], Bound]:
    return lambda value: applied(INT, lambda values: kernel(values).cast(INT), _on_the_clock(convert(value)))


_PARTS: dict[tuple[str, ...], tuple[Callable[..., Values], Callable[[Bound], Bound]]] = {
    ("year",): (pc.year, _moment),
    ("quarter",): (pc.quarter, _moment),
    ("month",): (pc.month, _moment),
    ("day", "dayofmonth"): (pc.day, _moment),
    ("dayofyear",): (pc.day_of_year, _moment),
    ("dayofweek",): (lambda values: pc.day_of_week(values, count_from_zero=False, week_start=7), _moment),
    ("weekday",): (pc.day_of_week, _moment),
    ("weekofyear",): (pc.iso_week, _moment),
    ("hour",): (pc.hour, _timed),
    ("minute",): (pc.minute, _timed),
    ("second",): (pc.second, _timed),
}
for _names, (_kernel, _convert) in _PARTS.items():
    function(*_names)(_part(_kernel, _convert))


_UNITS = {
    "year": "year", "yyyy": "year", "yy": "year", "quarter": "quarter", "month": "month", "mon": "month", "mm": "month",
    "week": "week", "day": "day", "dd": "day", "hour": "hour", "minute": "minute", "second": "second",
    "millisecond": "millisecond",
}  # fmt: skip


def _unit(argument: Bound, largest_only: bool = False) -> str:
    word = constant_of(argument, "the unit", str).lower()
    if word not in _UNITS or (largest_only and _UNITS[word] in ("day", "hour", "minute", "second", "millisecond")):
        raise ConfigurationError(f"there is no unit {word!r}; units are {', '.join(sorted(set(_UNITS.values())))}")
    return _UNITS[word]


@function("date_trunc")
def date_trunc(unit: Bound, value: Bound) -> Bound:
    name, value = _unit(unit), _moment(value)
    if pa.types.is_date(value.dtype):
        value = cast(value, STAMP)
    return applied(value.dtype, lambda values: _floor(values, name), value)


def _floor(values: Values, unit: str) -> Values:
    """The begin of the unit that a timestamp is in, on the clock of its zone.

    Where that time is repeated, the begin of an hour or a shorter unit is the one with the timestamp's own offset.
    """
    zone = values.type.tz
    if zone in (None, "UTC"):
        return pc.floor_temporal(values, unit=unit)
    clock = pc.local_timestamp(values)
    begin = pc.floor_temporal(clock, unit=unit)
    if unit in ("year", "quarter", "month", "week", "day"):
        return instant_of(begin, zone)
    before = pc.subtract(clock.cast(LONG), begin.cast(LONG))
    found = pc.subtract(values.cast(LONG), before).cast(LOCAL_STAMP).cast(STAMP).cast(values.type)
    return pc.if_else(pc.equal(pc.local_timestamp(found), begin), found, instant_of(begin, zone))


@function("trunc")
def trunc(value: Bound, unit: Bound) -> Bound:
    name = _unit(unit, largest_only=True)
    return applied(DATE, lambda values: pc.floor_temporal(values, unit=name), _date(value))


# --- text


_PARSED = {"yyyy": 4, "MM": 2, "dd": 2, "HH": 2, "mm": 2, "ss": 2}
"""The fields of a pattern for reading text, and their digits."""
_TOKENS = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")


def _pieces(pattern: str, letters: dict[str, str]) -> list[tuple[str, bool]]:
    """The parts of a pattern such as ``yyyy-MM-dd``; whether each is a field (``SSS``, ``%Y``), or text."""
    found, at = [], 0
    while at < len(pattern):
        match = _TOKENS.match(pattern, at)
        if match is None:
            raise ConfigurationError(f"the pattern {pattern!r} has a quote without an end")
        token = match.group()
        if match.group(1) is not None:
            found.append((match.group(1).replace("''", "'") or "'", False))
        elif not token[0].isalpha():
            found.append((token, False))
        elif token in letters:
            found.append((letters[token], True))
        else:
            known = ", ".join(letters)
            raise ConfigurationError(f"the pattern {pattern!r} has {token!r}; what is known is {known}")
        at = match.end()
    return found


def _micros(values: pa.Array) -> pa.Array:
    """The microseconds of the second."""
    micros = values.cast(LONG)
    return pc.subtract(micros, pc.multiply(whole_quotient(micros, SECOND_US), SECOND_US))


_SHOWN: dict[str, tuple[Callable[..., Values], int]] = {
    "yyyy": (pc.year, 4),
    "MM": (pc.month, 2),
    "dd": (pc.day, 2),
    "HH": (pc.hour, 2),
    "mm": (pc.minute, 2),
    "ss": (pc.second, 2),
    "DDD": (pc.day_of_year, 3),
    "SSS": (lambda values: whole_quotient(_micros(values), 1_000), 3),
    "SSSSSS": (_micros, 6),
}
"""The fields of a pattern: their number, and its least digits. ``strftime`` takes ten times as long."""


@function("date_format")
def date_format(value: Bound, pattern: Bound) -> Bound:
    fields = {name: name for name in _SHOWN}
    pieces = _pieces(constant_of(pattern, "the pattern", str), fields)
    value = _on_the_clock(_timed(value))
    none = pa.scalar(None, pa.string())

    def kernel(values: pa.Array) -> pa.Array:
        parts = [_shown_field(values, text) if is_field else text for text, is_field in pieces]
        return pc.if_else(values.is_valid(), pc.binary_join_element_wise(*parts, pa.scalar("")), none)

    return on_arrays(pa.string(), kernel, value)


def _shown_field(values: pa.Array, name: str) -> pa.Array:
    number, digits = _SHOWN[name]
    return pc.utf8_lpad(number(values).cast(pa.string()), digits, padding="0")


def _parsed(value: Bound, pattern: Bound, dtype: pa.DataType) -> Bound:
    """Text is brought into ISO's order, in which days that do not exist are found."""
    pieces = _pieces(constant_of(pattern, "the pattern", str), {name: name for name in _PARSED})
    check(value, pa.types.is_string, "text")
    fields = [text for text, is_field in pieces if is_field]
    if len(set(fields)) < len(fields):
        raise ConfigurationError(f"the pattern {pattern.constant!r} has a field twice")
    fitting = "".join(f"([0-9]{{{_PARSED[text]}}})" if is_field else re.escape(text) for text, is_field in pieces)
    group = {text: f"\\{at}" for at, text in enumerate(fields, 1)}
    day = "-".join(group.get(name, other) for name, other in {"yyyy": "1970", "MM": "01", "dd": "01"}.items())
    time = ":".join(group.get(name, "00") for name in ("HH", "mm", "ss"))

    def convert(texts: pa.Array) -> pa.Array:
        return text_to_moment(pc.replace_substring_regex(texts, f"^{fitting}$", f"{day} {time}"), LOCAL_STAMP)

    what = f"not in the form {pattern.constant!r}"
    local = by_pattern(LOCAL_STAMP, f"^{fitting}$", what, lambda texts: texts, value, convert)
    return local if dtype == LOCAL_STAMP else cast(local, dtype)


def _to(dtype: pa.DataType, *, strict: bool) -> Callable[[Bound, Bound | None], Bound]:
    def make(value: Bound, pattern: Bound | None = None) -> Bound:
        if pattern is not None:
            found = _parsed(value, pattern, dtype)
        else:
            check(value, lambda given: pa.types.is_string(given) or is_moment(given), "text, a date or a timestamp")
            found = cast(value, dtype, strict=strict)
        return found if strict else attempted(found)

    return make


for _name, _dtype in {"to_date": DATE, "to_timestamp": STAMP, "to_timestamp_ntz": LOCAL_STAMP}.items():
    function(_name)(_to(_dtype, strict=True))
    function(f"try_{_name}")(_to(_dtype, strict=False))


# --- numbers


@function("date_add", "dateadd")
def date_add(date: Bound, days: Bound) -> Bound:
    check(days, pa.types.is_integer, "a whole number of days")
    return _days_later(date, days, 1)


@function("date_sub")
def date_sub(date: Bound, days: Bound) -> Bound:
    check(days, pa.types.is_integer, "a whole number of days")
    return _days_later(date, days, -1)


@function("datediff", "date_diff")
def datediff(end: Bound, start: Bound) -> Bound:
    def kernel(later: Values, earlier: Values) -> Values:
        return pc.subtract(later.cast(INT), earlier.cast(INT))

    return applied(INT, kernel, _date(end), _date(start))


def _unix(units: int) -> Callable[[Bound], Bound]:
    def make(value: Bound) -> Bound:
        check(value, pa.types.is_timestamp, "a timestamp")
        return applied(LONG, lambda values: whole_quotient(values.cast(LONG), SECOND_US // units), value)

    return make


def _from_unix(units: int) -> Callable[[Bound], Bound]:
    def make(value: Bound) -> Bound:
        check(value, pa.types.is_integer, "a whole number")
        factor = SECOND_US // units

        def kernel(values: Values) -> Values:
            return pc.multiply_checked(values.cast(LONG), factor).cast(LOCAL_STAMP).cast(STAMP)

        return applied(STAMP, kernel, value, fails=True)

    return make


for _names, _per_second in {
    ("unix_seconds", "timestamp_seconds"): 1,
    ("unix_millis", "timestamp_millis"): 1_000,
    ("unix_micros", "timestamp_micros"): SECOND_US,
}.items():
    function(_names[0])(_unix(_per_second))
    function(_names[1])(_from_unix(_per_second))


@function("make_date")
def make_date(year: Bound, month: Bound, day: Bound) -> Bound:
    return by_value(DATE, datetime.date, *[cast(part, INT) for part in (year, month, day)], fails=True)


# --- zones and the clock


def _zone(argument: Bound) -> str:
    name = constant_of(argument, "the time zone", str)
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("us")), name)
    except pa.ArrowException as error:
        raise ConfigurationError(f"there is no time zone {name!r}") from error
    return str(name)


@function("from_utc_timestamp")
def from_utc_timestamp(value: Bound, zone: Bound) -> Bound:
    """The clock of a zone at an instant, as a timestamp that shows it in UTC."""
    name, value = _zone(zone), cast(_moment(value), STAMP)
    return applied(STAMP, lambda values: pc.local_timestamp(values.cast(pa.timestamp("us", name))).cast(STAMP), value)


@function("to_utc_timestamp")
def to_utc_timestamp(value: Bound, zone: Bound) -> Bound:
    """The reverse, with the rules of ``instant_of``."""
    name, value = _zone(zone), cast(_moment(value), STAMP)
    return applied(STAMP, lambda values: instant_of(values.cast(LOCAL_STAMP), name).cast(STAMP), value)


@function("current_timestamp", "now")
def current_timestamp() -> Bound:
    def run(rows: RowValues) -> Values:
        return pa.scalar(rows.now_ms() * 1_000, LONG).cast(LOCAL_STAMP).cast(STAMP)

    return Bound(STAMP, run, nullable=False, tells_time=True)


@function("current_date")
def current_date() -> Bound:
    return cast(current_timestamp(), DATE)
