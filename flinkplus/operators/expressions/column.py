"""``Column``: an expression as users write it in Python, with the operators and methods of PySpark's column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.schema import parse_schema
from flinkplus.operators.expressions.tree import Alias, Call, Case, Cast, Name, Part, Star, joined, literal_of


def _operator(sign: str) -> Callable[[ColumnExpression, Any], ColumnExpression]:
    """The method of an operator."""
    return lambda self, other: ColumnExpression(joined(sign, self.part, part_of(other)))


def _reversed(sign: str) -> Callable[[ColumnExpression, Any], ColumnExpression]:
    """The method of an operator whose left side is no column."""
    return lambda self, other: ColumnExpression(joined(sign, part_of(other), self.part))


class ColumnExpression:
    """An expression on the columns of a stream; ``flinkplus.functions`` makes them.

    In operators and methods, values that are no columns are constants: ``col("channel") == "apple"``.
    """

    __slots__ = ("part",)
    __hash__ = object.__hash__

    def __init__(self, part: Part) -> None:
        self.part = part

    def __repr__(self) -> str:
        return f"Column<{self.part}>"

    def __bool__(self) -> bool:
        raise ConfigurationError(f"{self.part} has no truth of its own: join conditions with & and |, negate with ~")

    def __iter__(self) -> Any:
        raise ConfigurationError(f"{self.part} is a column, not a list")

    def _call(self, function: str, *others: Any) -> ColumnExpression:
        return ColumnExpression(Call(function, (self.part, *map(part_of, others))))

    __add__, __radd__ = _operator("+"), _reversed("+")
    __sub__, __rsub__ = _operator("-"), _reversed("-")
    __mul__, __rmul__ = _operator("*"), _reversed("*")
    __truediv__, __rtruediv__ = _operator("/"), _reversed("/")
    __mod__, __rmod__ = _operator("%"), _reversed("%")
    __pow__ = _operator("pow")
    __lt__, __le__, __gt__, __ge__ = _operator("<"), _operator("<="), _operator(">"), _operator(">=")
    __and__, __rand__ = _operator("and"), _reversed("and")
    __or__, __ror__ = _operator("or"), _reversed("or")
    bitwiseAND, bitwiseOR, bitwiseXOR = _operator("&"), _operator("|"), _operator("^")

    def __eq__(self, other: object) -> ColumnExpression:  # type: ignore[override]
        return self._call("=", other)

    def __ne__(self, other: object) -> ColumnExpression:  # type: ignore[override]
        return self._call("<>", other)

    def __neg__(self) -> ColumnExpression:
        return self._call("-")

    def __invert__(self) -> ColumnExpression:
        return self._call("not")

    def __getitem__(self, key: Any) -> ColumnExpression:
        """An element of an array, from 0; the value of a key of a map; a field of a struct."""
        return self._call("[]", key)

    def getItem(self, key: Any) -> ColumnExpression:
        """As ``column[key]``."""
        return self[key]

    def getField(self, name: str) -> ColumnExpression:
        """A field of a struct."""
        return self._call(".", name)

    def alias(self, name: str) -> ColumnExpression:
        """The column with a name."""
        return ColumnExpression(Alias(self.part, name))

    def cast(self, dtype: str | pa.DataType) -> ColumnExpression:
        """The value as another type (``"double"``); a value without an equivalent is an error."""
        return ColumnExpression(Cast(self.part, type_of(dtype)))

    def try_cast(self, dtype: str | pa.DataType) -> ColumnExpression:
        """As ``cast``; a value without an equivalent becomes null."""
        return ColumnExpression(Cast(self.part, type_of(dtype), strict=False))

    def isNull(self) -> ColumnExpression:
        """Whether the value is null."""
        return self._call("isnull")

    is_null = isNull

    def isNotNull(self) -> ColumnExpression:
        """Whether the value is not null."""
        return self._call("isnotnull")

    is_not_null = isNotNull

    def isNaN(self) -> ColumnExpression:
        """Whether the value is NaN; not null."""
        return self._call("isnan")

    def eqNullSafe(self, other: Any) -> ColumnExpression:
        """Equality for which nulls are equal."""
        return self._call("<=>", other)

    def between(self, low: Any, high: Any) -> ColumnExpression:
        """Whether the value is at least ``low`` and at most ``high``."""
        return self._call("between", low, high)

    def isin(self, *values: Any) -> ColumnExpression:
        """Whether the value is one of some others, given singly or as a list."""
        listed = values[0] if len(values) == 1 and isinstance(values[0], (list, tuple, set, frozenset)) else values
        ordered = sorted(listed, key=repr) if isinstance(listed, (set, frozenset)) else listed
        return self._call("in", *ordered)

    def like(self, pattern: str) -> ColumnExpression:
        """Whether the text fits a pattern, in which ``%`` is any text, and ``_`` one character."""
        return self._call("like", pattern)

    def ilike(self, pattern: str) -> ColumnExpression:
        """As ``like``, in any case."""
        return self._call("ilike", pattern)

    def rlike(self, pattern: str) -> ColumnExpression:
        """Whether a part of the text fits a regular expression of RE2."""
        return self._call("rlike", pattern)

    def startswith(self, other: Any) -> ColumnExpression:
        """Whether the text begins with another."""
        return self._call("startswith", other)

    def endswith(self, other: Any) -> ColumnExpression:
        """Whether the text ends with another."""
        return self._call("endswith", other)

    def contains(self, other: Any) -> ColumnExpression:
        """Whether the text has another as a part."""
        return self._call("contains", other)

    def substr(self, position: Any, length: Any) -> ColumnExpression:
        """Some characters, from ``position``, which counts from 1."""
        return self._call("substring", position, length)

    def when(self, condition: ColumnExpression, value: Any) -> ColumnExpression:
        """A further branch of ``functions.when``."""
        case = self._case("when")
        return ColumnExpression(Case((*case.branches, (part_of(condition), part_of(value)))))

    def otherwise(self, value: Any) -> ColumnExpression:
        """The value where no branch of ``functions.when`` counts."""
        return ColumnExpression(Case(self._case("otherwise").branches, part_of(value)))

    def _case(self, method: str) -> Case:
        if not isinstance(self.part, Case) or self.part.otherwise is not None:
            raise ConfigurationError(f"{method} follows when(condition, value), not {self.part}")
        return self.part


def type_of(dtype: str | pa.DataType) -> pa.DataType:
    """A type as users write it. Raises ``ConfigurationError``."""
    if isinstance(dtype, pa.DataType):
        return dtype
    if not isinstance(dtype, str):
        raise ConfigurationError(f"a type is text like 'double', or a pyarrow.DataType, not {dtype!r}")
    return parse_schema(f"value {dtype}").field(0).type


def part_of(value: Any) -> Part:
    """The tree of a column, or a value as a constant. Raises ``ConfigurationError``."""
    if isinstance(value, ColumnExpression):
        return value.part
    if type(value).__module__.startswith("pyspark.") and type(value).__name__ == "Column":
        raise ConfigurationError("a column of pyspark runs in Spark alone: take flinkplus.functions, or SQL text")
    return literal_of(value)


def expression(value: Any) -> Part:
    """What an argument for an expression means: a ``Column``, or SQL text. Raises ``ConfigurationError``."""
    if isinstance(value, str):
        from flinkplus.operators.expressions.sql import parsed

        return parsed(value)
    if isinstance(value, ColumnExpression):
        return value.part
    if type(value).__module__.startswith("pyspark."):
        return part_of(value)
    raise ConfigurationError(f"an expression is SQL text or a column of flinkplus.functions, not {value!r}")


def path_of(name: str) -> Name | Star:
    """A column's name, or its path to a field within (``"address.city"``); parts may stand in backticks."""
    if name == "*":
        return Star()
    parts, rest = [], name
    while rest:
        if rest.startswith("`"):
            end = rest.find("`", 1)
            if end < 0:
                raise ConfigurationError(f"the column {name!r} has a backtick without an end")
            part, rest = rest[1:end], rest[end + 1 :]
            if rest and not rest.startswith("."):
                raise ConfigurationError(f"the column {name!r} is not understood")
            rest = rest[1:]
        else:
            part, _, rest = rest.partition(".")
        parts.append(part)
    if not parts or not all(parts):
        raise ConfigurationError(f"{name!r} is no name of a column")
    return Star(Name(tuple(parts[:-1]))) if parts[-1] == "*" else Name(tuple(parts))
