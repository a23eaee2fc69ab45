"""Schemas as users write them: ``'word string, n long'``, in Spark's words, or a ``pa.Schema``.

Known types: string, binary, boolean, byte/tinyint, short/smallint, int/integer, long/bigint, float/real, double,
decimal(p,s), date, timestamp (an instant, kept as UTC), timestamp_ntz, array<...>, map<..., ...>, struct<name: ...>.
Any case; names may stand in backticks; ``NOT NULL`` may follow a type. A lone type is one column named ``value``, as in
Spark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from flinkplus.errors import ConfigurationError
from flinkplus.near import did_you_mean

_SIMPLE = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal": pa.decimal128(10, 0),
}
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:]))", re.UNICODE)


def parse_schema(schema: str | pa.Schema) -> pa.Schema:
    """The schema that ``schema`` describes. Raises ``ConfigurationError`` with the part that is not understood."""
    if isinstance(schema, pa.Schema):
        return _checked(schema)
    if not isinstance(schema, str):
        raise ConfigurationError(f"a schema is text like 'word string, n long' or a pyarrow.Schema, not {schema!r}")
    return _checked(_Parser(schema).schema())


def united(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The schema of rows of all ``schemas``, nullable where one is. Raises ``ConfigurationError`` if others differ."""
    first = schemas[0]
    for other in schemas[1:]:
        if (first.names, first.types) != (other.names, other.types):
            raise ConfigurationError(
                f"streams of different schemas cannot be united: ({columns_text(first)}) and ({columns_text(other)}); "
                "map one of them to the columns of the other, in the same order"
            )
    fields = [pa.field(f.name, f.type, any(s.field(i).nullable for s in schemas)) for i, f in enumerate(first)]
    return pa.schema(fields)


def check_column(operator: str, schema: pa.Schema, column: str) -> None:
    """Raises ``ConfigurationError`` unless exactly one column has that name."""
    if schema.names.count(column) != 1:
        near = did_you_mean(column, schema.names) if isinstance(column, str) else ""
        raise ConfigurationError(f"operator {operator!r}: no column {column!r} among {schema.names}{near}")


def repeated(names: Sequence[str]) -> str | None:
    """The first name, alphabetically, that is repeated in ``names``; ``None`` without one."""
    return min((name for name in names if names.count(name) > 1), default=None)


def columns_text(schema: pa.Schema) -> str:
    """Names and types of the columns, as errors show them: ``word string, n int64``."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _checked(schema: pa.Schema) -> pa.Schema:
    if not len(schema):
        raise ConfigurationError("a schema needs at least one column")
    if (twice := repeated(schema.names)) is not None:
        raise ConfigurationError(f"a schema cannot have the column {twice!r} twice: {schema.names}")
    return schema


class _Parser:
    """Recursive descent over the tokens of one schema text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._error(f"{text[position:].strip()[:20]!r} is not expected")
            quoted, word, sign = match.groups()
            token = ("name", quoted.replace("``", "`")) if quoted else ("word", word) if word else ("sign", sign)
            self._tokens.append(token)
            position = match.end()
        self._next = 0

    def _error(self, problem: str) -> ConfigurationError:
        known = ", ".join([*_SIMPLE, "array<...>", "map<..., ...>", "struct<name: ...>"])
        return ConfigurationError(
            f"the schema {self._text!r} is not understood: {problem}; write 'name type, name type'; types are {known}"
        )

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        position = self._next + ahead
        return self._tokens[position] if position < len(self._tokens) else ("end", "its end")

    def _take(self, *wanted: str) -> str:
        kind, text = self._peek()
        if kind not in wanted and text not in wanted:
            raise self._error(f"{text!r} stands where {' or '.join(map(repr, wanted))} is expected")
        self._next += 1
        return text

    def _skip(self, text: str) -> bool:
        kind, found = self._peek()
        if kind in ("sign", "word") and found.lower() == text:
            self._next += 1
            return True
        return False

    def schema(self) -> pa.Schema:
        if (self._peek()[0] == "word" and self._peek(1)[0] == "end") or self._peek(1)[1] in ("<", "("):
            fields = [pa.field("value", self._type())]
        else:
            fields = self._fields()
        if self._peek()[0] != "end":
            raise self._error(f"{self._peek()[1]!r} is not expected")
        return pa.schema(fields)

    def _fields(self) -> list[pa.Field]:
        fields = [self._field()]
        while self._skip(","):
            fields.append(self._field())
        return fields

    def _struct(self) -> pa.DataType:
        self._take("<")
        fields = self._fields()
        self._take(">")
        if (twice := repeated([field.name for field in fields])) is not None:
            raise self._error(f"a struct cannot have the field {twice!r} twice")
        return pa.struct(fields)

    def _field(self) -> pa.Field:
        name = self._take("name", "word")
        self._skip(":")
        dtype = self._type()
        nullable = True
        if self._skip("not"):
            if not self._skip("null"):
                raise self._error("NULL is missing after NOT")
            nullable = False
        return pa.field(name, dtype, nullable)

    def _type(self) -> pa.DataType:
        word = self._take("word").lower()
        if word == "array":
            self._take("<")
            inner = self._type()
            self._take(">")
            return pa.list_(inner)
        if word == "map":
            self._take("<")
            key = self._type()
            self._take(",")
            value = self._type()
            self._take(">")
            return pa.map_(key, value)
        if word == "struct":
            return self._struct()
        if word in ("decimal", "numeric") and self._skip("("):
            precision = self._take("word")
            scale = self._take("word") if self._skip(",") else "0"
            self._take(")")
            try:
                return pa.decimal128(int(precision), int(scale))
            except ValueError as error:
                raise self._error(str(error)) from error
        if word not in _SIMPLE:
            raise self._error(f"there is no type {word!r}")
        return _SIMPLE[word]
