"""Text and bytes.

Rules: positions count characters (code points), from 1. Patterns are regular expressions of RE2, and constants; RE2
has no look-around and no references back, which Java's have.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.errors import ConfigurationError
from flinkplus.operators.expressions.bound import Bound, Values, applied, by_value, constant, constant_of, on_arrays
from flinkplus.operators.expressions.casts import cast
from flinkplus.operators.expressions.functions.registry import check, function
from flinkplus.operators.expressions.types import is_moment, is_number

TEXT, BOOL, INT, LONG = pa.string(), pa.bool_(), pa.int32(), pa.int64()
NO_LIMIT = 2**31 - 1


def _is_bytes(dtype: Any) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_binary(dtype))


def _shows(dtype: Any) -> bool:
    return _is_bytes(dtype) or is_number(dtype) or is_moment(dtype) or bool(pa.types.is_boolean(dtype))


def text(argument: Bound) -> Bound:
    """An argument that must be text."""
    if pa.types.is_null(argument.dtype):
        return constant(None, TEXT)
    check(argument, pa.types.is_string, "text")
    return argument


def as_text(argument: Bound) -> Bound:
    """An argument that becomes text, as with CAST."""
    if pa.types.is_null(argument.dtype):
        return constant(None, TEXT)
    check(argument, _shows, "text, or what can be cast to text")
    return cast(argument, TEXT)


def _whole(argument: Bound) -> Bound:
    check(argument, pa.types.is_integer, "a whole number")
    return cast(argument, LONG)


def _pattern(argument: Bound) -> str:
    pattern = constant_of(argument, "the pattern", str)
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowException as error:
        raise ConfigurationError(f"the pattern {pattern!r} is no regular expression of RE2: {error}") from error
    return str(pattern)


def _of_text(dtype: pa.DataType, kernel: Callable[..., Values]) -> Callable[[Bound], Bound]:
    return lambda value: applied(dtype, kernel, text(value))


_SIMPLE: dict[tuple[str, ...], Callable[..., Values]] = {
    ("lower", "lcase"): pc.utf8_lower,
    ("upper", "ucase"): pc.utf8_upper,
    ("reverse",): pc.utf8_reverse,
}
for _names, _kernel in _SIMPLE.items():
    function(*_names)(_of_text(TEXT, _kernel))


def _trims(kernel: Callable[..., Values]) -> Callable[[Bound, Bound | None], Bound]:
    """``trim(value)``, which takes blanks away, or, in SQL's order, ``trim(characters, value)``."""

    def make(first: Bound, second: Bound | None = None) -> Bound:
        value, characters = (first, None) if second is None else (second, first)
        gone = " " if characters is None else constant_of(characters, "what is trimmed", str)
        return applied(TEXT, lambda values: kernel(values, characters=gone), text(value)) if gone else text(value)

    return make


for _name, _kernel in {"trim": pc.utf8_trim, "ltrim": pc.utf8_ltrim, "rtrim": pc.utf8_rtrim}.items():
    function(_name)(_trims(_kernel))


@function("btrim")
def btrim(value: Bound, characters: Bound | None = None) -> Bound:
    trim = _trims(pc.utf8_trim)
    return trim(value, None) if characters is None else trim(characters, value)


@function("length", "char_length", "character_length", "len")
def length(value: Bound) -> Bound:
    check(value, _is_bytes, "text or binary")
    kernel = pc.utf8_length if pa.types.is_string(value.dtype) else pc.binary_length
    return applied(INT, lambda values: kernel(values).cast(INT), value)


@function("octet_length")
def octet_length(value: Bound) -> Bound:
    check(value, _is_bytes, "text or binary")
    return applied(INT, lambda values: pc.binary_length(values).cast(INT), value)


@function("concat", "||")
def concat(*arguments: Bound) -> Bound:
    if not arguments:
        return constant("", TEXT)
    if all(pa.types.is_binary(argument.dtype) for argument in arguments):
        return applied(pa.binary(), lambda *parts: pc.binary_join_element_wise(*parts, b""), *arguments)
    parts = [as_text(argument) for argument in arguments]
    return applied(TEXT, lambda *values: pc.binary_join_element_wise(*values, ""), *parts)


@function("concat_ws")
def concat_ws(separator: Bound, *arguments: Bound) -> Bound:
    between = constant_of(separator, "the separator", str)
    if not arguments:
        return constant("", TEXT)
    parts = [as_text(argument) for argument in arguments]

    def kernel(*values: Values) -> Values:
        # Without a first text that is not null, Arrow leaves out rows in which all are.
        joined = pc.binary_join_element_wise("", *values, between, null_handling="skip")
        return pc.utf8_slice_codeunits(joined, len(between))

    return applied(TEXT, kernel, *parts)


def _substring(value: str, position: int, count: int) -> str:
    start = position - 1 if position > 0 else (len(value) + position if position < 0 else 0)
    end = start + count
    return value[max(start, 0) : max(end, 0)]


@function("substring", "substr", "mid")
def substring(value: Bound, position: Bound, count: Bound | None = None) -> Bound:
    count = constant(NO_LIMIT, LONG) if count is None else _whole(count)
    position, value = _whole(position), text(value)
    if not (position.is_constant and count.is_constant) or position.constant is None or count.constant is None:
        return by_value(TEXT, _substring, value, position, count)
    start, wanted = position.constant, count.constant
    if wanted <= 0:
        return by_value(TEXT, lambda found: "", value)
    first = start - 1 if start > 0 else start
    stop = first + wanted if first >= 0 or first + wanted < 0 else None
    return applied(TEXT, lambda values: pc.utf8_slice_codeunits(values, first, stop), value)


@function("left")
def left(value: Bound, count: Bound) -> Bound:
    return substring(value, constant(1, INT), count)


@function("right")
def right(value: Bound, count: Bound) -> Bound:
    return by_value(TEXT, lambda found, wanted: found[-wanted:] if wanted > 0 else "", text(value), _whole(count))


def _tests(kernel: Callable[..., Values], function_: Callable[[str, str], bool]) -> Callable[[Bound, Bound], Bound]:
    def make(value: Bound, other: Bound) -> Bound:
        value, other = text(value), text(other)
        if other.is_constant and other.constant is not None:
            return applied(BOOL, lambda values: kernel(values, other.constant), value)
        return by_value(BOOL, function_, value, other)

    return make


function("startswith")(_tests(pc.starts_with, str.startswith))
function("endswith")(_tests(pc.ends_with, str.endswith))
function("contains")(_tests(pc.match_substring, str.__contains__))


@function("like")
def like(value: Bound, pattern: Bound) -> Bound:
    wanted = constant_of(pattern, "the pattern", str)
    return applied(BOOL, lambda values: pc.match_like(values, wanted), text(value))


@function("ilike")
def ilike(value: Bound, pattern: Bound) -> Bound:
    wanted = constant_of(pattern, "the pattern", str)
    return applied(BOOL, lambda values: pc.match_like(values, wanted, ignore_case=True), text(value))


@function("rlike", "regexp_like", "regexp")
def rlike(value: Bound, pattern: Bound) -> Bound:
    wanted = _pattern(pattern)
    return applied(BOOL, lambda values: pc.match_substring_regex(values, wanted), text(value))


_REPLACED = re.compile(r"\\(.)|\$([0-9])|\\", re.DOTALL)
"""Of a replacement as Java has it: a character that stands for itself, a group, a backslash at the end."""


def _for_re2(found: re.Match[str]) -> str:
    if found[2] is not None:
        return f"\\{found[2]}"
    return "\\\\" if found[1] in (None, "\\") else found[1]


@function("regexp_replace")
def regexp_replace(value: Bound, pattern: Bound, replacement: Bound) -> Bound:
    wanted, new = _pattern(pattern), constant_of(replacement, "the replacement", str)
    numbered = _REPLACED.sub(_for_re2, new)
    try:
        pc.replace_substring_regex(pa.array([""]), wanted, numbered)
    except pa.ArrowException as error:
        raise ConfigurationError(f"the replacement {new!r} does not fit the pattern {wanted!r}: {error}") from error
    return applied(TEXT, lambda values: pc.replace_substring_regex(values, wanted, numbered), text(value))


@function("regexp_extract")
def regexp_extract(value: Bound, pattern: Bound, group: Bound | None = None) -> Bound:
    """The group of the first match; ``''`` without one."""
    wanted = _pattern(pattern)
    number = 1 if group is None else constant_of(group, "the group", int)
    named, groups = _named_groups(wanted)
    if not 0 <= number <= groups:
        raise ConfigurationError(f"the pattern {wanted!r} has no group {number}")

    def kernel(values: Values) -> Values:
        found = pc.struct_field(pc.extract_regex(values, named), f"g{number}")
        return pc.if_else(pc.is_null(values), values, pc.fill_null(found, ""))

    return applied(TEXT, kernel, text(value))


def _named_groups(pattern: str) -> tuple[str, int]:
    """The pattern with a name for each group: ``g0`` is all that matches."""
    named, groups, at, in_class = "", 0, 0, False
    while at < len(pattern):
        sign = pattern[at]
        if sign == "\\":
            named += pattern[at : at + 2]
            at += 2
            continue
        in_class = (in_class and sign != "]") or (not in_class and sign == "[")
        opens = sign == "(" and not in_class
        if opens and (pattern[at + 1 : at + 2] != "?" or pattern[at + 1 : at + 4] == "?P<"):
            groups += 1
            named += f"(?P<g{groups}>"
            at = pattern.index(">", at) + 1 if pattern[at + 1 : at + 4] == "?P<" else at + 1
            continue
        named += sign
        at += 1
    return f"(?P<g0>{named})", groups


@function("replace")
def replace(value: Bound, old: Bound, new: Bound | None = None) -> Bound:
    new = constant("", TEXT) if new is None else text(new)
    value, old = text(value), text(old)
    if old.is_constant and new.is_constant and old.constant and new.constant is not None:
        return applied(TEXT, lambda values: pc.replace_substring(values, old.constant, new.constant), value)
    return by_value(TEXT, lambda found, gone, put: found.replace(gone, put) if gone else found, value, old, new)


@function("translate")
def translate(value: Bound, old: Bound, new: Bound) -> Bound:
    gone, put = constant_of(old, "the characters", str), constant_of(new, "the characters", str)
    table = {ord(sign): put[at] if at < len(put) else None for at, sign in reversed(list(enumerate(gone)))}
    return by_value(TEXT, lambda found: found.translate(table), text(value))


@function("repeat")
def repeat(value: Bound, count: Bound) -> Bound:
    return by_value(TEXT, lambda found, times: found * max(0, times), text(value), _whole(count))


def _padded(found: str, count: int, pad: str, *, left_side: bool) -> str:
    missing = max(0, count) - len(found)
    if missing <= 0 or not pad:
        return found[: max(0, count)]
    padding = (pad * (missing // len(pad) + 1))[:missing]
    return padding + found if left_side else found + padding


@function("lpad")
def lpad(value: Bound, count: Bound, pad: Bound | None = None) -> Bound:
    pad = constant(" ", TEXT) if pad is None else text(pad)
    return by_value(TEXT, lambda *given: _padded(*given, left_side=True), text(value), _whole(count), pad)


@function("rpad")
def rpad(value: Bound, count: Bound, pad: Bound | None = None) -> Bound:
    pad = constant(" ", TEXT) if pad is None else text(pad)
    return by_value(TEXT, lambda *given: _padded(*given, left_side=False), text(value), _whole(count), pad)


@function("initcap")
def initcap(value: Bound) -> Bound:
    def capital(found: str) -> str:
        return " ".join(word[:1].upper() + word[1:].lower() for word in found.split(" "))

    return by_value(TEXT, capital, text(value))


@function("instr")
def instr(value: Bound, part: Bound) -> Bound:
    return locate(part, value)


@function("locate", "position")
def locate(part: Bound, value: Bound, start: Bound | None = None) -> Bound:
    start = constant(1, LONG) if start is None else _whole(start)
    value, part = text(value), text(part)
    if part.is_constant and part.constant is not None and start.constant == 1:
        return on_arrays(INT, lambda values: _positions(values, part.constant), value)

    def find(sought: str, found: str, at: int) -> int:
        return found.find(sought, at - 1) + 1 if at > 0 else 0

    return by_value(INT, find, part, value, start)


def _positions(values: pa.Array, part: str) -> pa.Array:
    if pc.sum(pc.utf8_length(values)) == pc.sum(pc.binary_length(values)):
        return pc.add(pc.find_substring(values, part), pa.scalar(1, INT))
    return pa.array([None if one is None else one.find(part) + 1 for one in values.to_pylist()], INT)


@function("split")
def split(value: Bound, pattern: Bound, limit: Bound | None = None) -> Bound:
    wanted = _pattern(pattern)
    if not wanted:
        raise ConfigurationError("the pattern is empty")
    most = -1 if limit is None else constant_of(limit, "the limit", int)
    splits = most - 1 if most > 0 else None
    parts = pa.list_(TEXT)
    plain = all(sign.isalnum() or sign in "/,;:- _=&%#@!~<>\"'" for sign in wanted)
    kernel = pc.split_pattern if plain else pc.split_pattern_regex
    if splits == 0:
        return on_arrays(parts, _as_lists, text(value))
    return applied(parts, lambda values: kernel(values, wanted, max_splits=splits), text(value))


def _as_lists(values: pa.Array) -> pa.Array:
    return pa.array([None if one is None else [one] for one in values.to_pylist()], pa.list_(TEXT))


@function("split_part")
def split_part(value: Bound, delimiter: Bound, number: Bound) -> Bound:
    def part(found: str, between: str, at: int) -> str:
        if at == 0:
            raise ValueError("split_part counts from 1")
        parts = found.split(between) if between else [found]
        return parts[at - 1 if at > 0 else at] if -len(parts) <= at <= len(parts) else ""

    return by_value(TEXT, part, text(value), text(delimiter), _whole(number), fails=True)
