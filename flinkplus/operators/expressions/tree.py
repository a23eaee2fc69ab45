"""Expressions as trees: what SQL text and the functions of ``flinkplus.functions`` give, before columns are known.

Rules: trees are data. They travel to the slots in the job's plan and never change. Two equal trees give equal values
for equal rows.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.values import instant

_LONG_BITS = 63
_INT_BITS = 31
MAX_DIGITS = 38
MAX_LEVELS = 100
"""Levels of a tree. Each takes a few calls of functions, where types are found, values computed and jobs pickled."""
MAX_PARTS = 100_000

Part: TypeAlias = "Name | Literal | Call | Cast | Case | Alias | Star"


@dataclass(frozen=True)
class Name:
    """A column, or a field within one: ``("address", "city")``."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True)
class Literal:
    """A constant, as Arrow keeps values of ``dtype``; ``None`` is null."""

    value: Any
    dtype: pa.DataType

    def __str__(self) -> str:
        return "NULL" if self.value is None else str(self.value)


@dataclass(frozen=True)
class Call:
    """A function, or an operator such as ``+``, of some arguments."""

    function: str
    arguments: tuple[Part, ...]

    def __str__(self) -> str:
        shown = [str(argument) for argument in self.arguments]
        if self.function == ".":
            return f"{shown[0]}.{shown[1]}"
        if self.function == "[]":
            return f"{shown[0]}[{shown[1]}]"
        if self.function[0].isalpha() and self.function not in ("and", "or", "div"):
            return f"{self.function}({', '.join(shown)})"
        if len(shown) == 1:
            return f"({self.function} {shown[0]})"
        return f"({f' {self.function.upper()} '.join(shown)})"


@dataclass(frozen=True)
class Cast:
    """A value as another type. ``strict``: a value that has no equivalent is an error; otherwise it becomes null."""

    value: Part
    dtype: pa.DataType
    strict: bool = True

    def __str__(self) -> str:
        return f"{'CAST' if self.strict else 'TRY_CAST'}({self.value} AS {self.dtype})"


@dataclass(frozen=True)
class Case:
    """The value of the first branch whose condition is true; otherwise ``otherwise``, which may be missing: null."""

    branches: tuple[tuple[Part, Part], ...]
    otherwise: Part | None = None

    def __str__(self) -> str:
        branches = " ".join(f"WHEN {condition} THEN {value}" for condition, value in self.branches)
        return f"CASE {branches}{'' if self.otherwise is None else f' ELSE {self.otherwise}'} END"


@dataclass(frozen=True)
class Alias:
    """A value with a name."""

    value: Part
    name: str

    def __str__(self) -> str:
        return f"{self.value} AS {self.name}"


@dataclass(frozen=True)
class Star:
    """All columns, or all fields of the struct ``of``."""

    of: Name | None = None

    def __str__(self) -> str:
        return "*" if self.of is None else f"{self.of}.*"


def children(part: Part) -> tuple[Part, ...]:
    """The parts that a part is made of."""
    match part:
        case Call():
            return part.arguments
        case Cast() | Alias():
            return (part.value,)
        case Case():
            branches = tuple(inner for branch in part.branches for inner in branch)
            return branches if part.otherwise is None else (*branches, part.otherwise)
        case _:
            return ()


def check_size(part: Part) -> None:
    """Raises ``ConfigurationError`` for a tree with more than ``MAX_LEVELS`` levels or ``MAX_PARTS`` parts."""
    level, parts, levels = [part], 1, 1
    while level := [inner for outer in level for inner in children(outer)]:
        parts, levels = parts + len(level), levels + 1
        if levels > MAX_LEVELS or parts > MAX_PARTS:
            raise ConfigurationError(
                f"an expression has at most {MAX_LEVELS} levels and {MAX_PARTS:,} parts: compute a part of it before, "
                "with with_columns"
            )


def joined(sign: str, left: Part, right: Part) -> Call:
    """``left sign right``. What is joined by several ``and`` or several ``or`` is one call, not one within another."""
    if sign in ("and", "or") and isinstance(left, Call) and left.function == sign:
        return Call(sign, (*left.arguments, right))
    return Call(sign, (left, right))


def name_of(part: Part) -> str:
    """The name of a column that has these values, unless it was given one: that of the column itself, or the text."""
    if isinstance(part, Alias):
        return part.name
    if isinstance(part, Cast):
        return name_of(part.value) if isinstance(part.value, Name) else str(part)
    if isinstance(part, Name):
        return part.parts[-1]
    if isinstance(part, Call) and part.function == "." and isinstance(part.arguments[1], Literal):
        return str(part.arguments[1].value)
    return str(part)


def literal_of(value: Any) -> Literal:
    """A Python value as a constant. Raises ``ConfigurationError`` for a type that has none."""
    if value is None:
        return Literal(None, pa.null())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return Literal(value, pa.bool_())
    if isinstance(value, int):
        bits = (value if value >= 0 else ~value).bit_length()
        if bits > _LONG_BITS:
            return _decimal(decimal.Decimal(value))
        return Literal(value, pa.int32() if bits <= _INT_BITS else pa.int64())
    if isinstance(value, decimal.Decimal):
        return _decimal(value)
    for kind, dtype in _TYPES:
        if isinstance(value, kind):
            return Literal(*dtype(value))
    raise ConfigurationError(f"{value!r} of type {type(value).__name__} cannot stand in an expression")


def _decimal(value: decimal.Decimal) -> Literal:
    if not value.is_finite():
        raise ConfigurationError(f"the decimal {value} is not a number")
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale, 1)
    if precision > MAX_DIGITS:
        raise ConfigurationError(f"the number {value} has more than {MAX_DIGITS} digits")
    return Literal(value, pa.decimal128(precision, scale))


def _interval(value: datetime.timedelta) -> tuple[datetime.timedelta, pa.DataType]:
    if abs(value // datetime.timedelta(microseconds=1)) >= 1 << _LONG_BITS:
        raise ConfigurationError(f"the interval {value} is too long")
    return value, pa.duration("us")


def _moment(value: datetime.datetime) -> tuple[datetime.datetime, pa.DataType]:
    return instant(value).astimezone(datetime.timezone.utc), pa.timestamp("us", "UTC")


_TYPES: list[tuple[Any, Callable[[Any], tuple[Any, pa.DataType]]]] = [
    (float, lambda value: (value, pa.float64())),
    (str, lambda value: (value, pa.string())),
    ((bytes, bytearray), lambda value: (bytes(value), pa.binary())),
    (datetime.datetime, _moment),
    (datetime.date, lambda value: (value, pa.date32())),
    (datetime.timedelta, _interval),
]
