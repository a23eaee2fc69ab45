"""Columns of a stream as those of a table, and rows as the text that ``COPY ... (FORMAT csv)`` reads.

The first line has the names of the columns: when the text is read, the program may have others, in another order. A
null is an empty field; every value is quoted, an empty text too. Timestamps have microseconds, finer ones are cut.
Structs, arrays and maps are JSON.
"""

from __future__ import annotations

import datetime
import io
from csv import reader
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from typing_extensions import override

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.operators.expressions.json_text import json_column, json_writer
from flinkplus.printable import printable
from flinkplus.sinks.file_writer import Encoder

TEXTS = ("text", "varchar", "bpchar", "citext", "json", "jsonb", "uuid")
LONGEST_NAME = 63
"""In bytes; PostgreSQL cuts longer names."""
MICROSECONDS = 6
FIRST_YEAR, LAST_YEAR = 1, 9999
FIRST_DAY, END_DAY = ((datetime.date(*day) - datetime.date(1970, 1, 1)).days for day in ((1, 1, 1), (9999, 12, 31)))
DAY_S = 86_400
_JSON_NUL = r"(^|[^\\])(\\\\)*\\u0000"
"""A NUL character in JSON text, and not a backslash before the letters ``u0000``."""
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True)
class SqlType:
    """What a column is made as, ``name``, and which types of an existing table hold it without loss, ``fits``.

    ``digits``, ``scale``: needed of a ``numeric`` with limits; ``enums``: whether any enumeration fits.
    """

    name: str
    fits: tuple[str, ...]
    digits: int = 0
    scale: int = 0
    enums: bool = False


INTEGERS = {8: ("int2", 3), 16: ("int2", 5), 32: ("int4", 10), 64: ("int8", 19)}
WIDER = ("int2", "int4", "int8", "numeric")
SQL_NAMES = {"int2": "smallint", "int4": "integer", "int8": "bigint", "numeric": "numeric"}


def sql_type(dtype: pa.DataType) -> SqlType | None:
    """The type of a column in PostgreSQL; ``None``: such columns cannot be stored."""
    types = pa.types
    if types.is_boolean(dtype):
        return SqlType("boolean", ("bool",))
    if types.is_integer(dtype):
        return _integer(dtype)
    if types.is_float16(dtype) or types.is_float32(dtype):
        return SqlType("real", ("float4", "float8"))
    if types.is_float64(dtype):
        return SqlType("double precision", ("float8",))
    if types.is_decimal(dtype):
        name = f"numeric({dtype.precision}, {dtype.scale})"
        return SqlType(name, ("numeric",), dtype.precision - dtype.scale, dtype.scale)
    if types.is_string(dtype) or types.is_large_string(dtype):
        return SqlType("text", TEXTS, enums=True)
    if types.is_binary(dtype) or types.is_large_binary(dtype) or types.is_fixed_size_binary(dtype):
        return SqlType("bytea", ("bytea",))
    if types.is_date(dtype):
        return SqlType("date", ("date",))
    if types.is_timestamp(dtype):
        zone = dtype.tz is not None
        return SqlType("timestamp with time zone", ("timestamptz",)) if zone else SqlType("timestamp", ("timestamp",))
    if types.is_nested(dtype) and json_writer(dtype, with_nulls=True) is not None:
        return SqlType("jsonb", ("jsonb", "json"))
    return None


def _integer(dtype: pa.DataType) -> SqlType:
    """Types without a sign need the next wider one."""
    signed = pa.types.is_signed_integer(dtype)
    base, digits = INTEGERS[dtype.bit_width] if signed else INTEGERS.get(2 * dtype.bit_width, ("numeric", 20))
    name = "numeric(20, 0)" if base == "numeric" else SQL_NAMES[base]
    return SqlType(name, WIDER[WIDER.index(base) :], digits)


class CopyEncoder(Encoder):
    """Rows as CSV. ``keys``: columns that must not be null. ``sink``: its name, for errors. ``header``: the names of
    the columns come first."""

    def __init__(self, stream: Any, schema: pa.Schema, keys: tuple[str, ...], sink: str, header: bool = True) -> None:
        self._keys = keys
        self._sink = sink
        self._schema = pa.schema([(field.name, _written_as(field.type)) for field in schema])
        options = csv.WriteOptions(include_header=header, quoting_style="all_valid")
        self._writer = csv.CSVWriter(stream, self._schema, write_options=options)

    @override
    def write(self, batch: pa.RecordBatch) -> None:
        columns = [self._column(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    @override
    def finish(self) -> None:
        self._writer.close()

    def _column(self, name: str, column: pa.Array) -> pa.Array:
        """The column as it is written. Raises ``InputError`` for values that PostgreSQL would refuse at the commit."""
        types, dtype = pa.types, column.type
        if name in self._keys and column.null_count:
            raise InputError(f"sink {self._sink!r}: key column {name!r} holds a null; filter such rows out before")
        if types.is_string(dtype) or types.is_large_string(dtype):
            self._check_text(name, column)
            return column
        if types.is_date(dtype) or types.is_timestamp(dtype):
            if not _is_in_range(column):
                years = f"{FIRST_YEAR} to {LAST_YEAR}"
                raise InputError(f"sink {self._sink!r}: column {name!r} holds a time outside of the years {years}")
            column = pc.cast(column, _written_as(dtype), safe=False)
        if types.is_nested(dtype):
            return self._json(name, column)
        if _written_as(dtype) == pa.string():
            if types.is_decimal(dtype):
                return pc.cast(column, pa.string())
            return pa.array(
                [value if value is None else "\\x" + value.hex() for value in column.to_pylist()], pa.string()
            )
        return column if column.type == _written_as(dtype) else pc.cast(column, _written_as(dtype))

    def _json(self, name: str, column: pa.Array) -> pa.Array:
        try:
            found = json_column(column, with_nulls=True)
        except (OverflowError, ValueError) as error:  # a time that Python cannot show
            raise InputError(
                f"sink {self._sink!r}: column {name!r} holds a value without a form in JSON: {printable(error)}"
            ) from error
        if pc.any(pc.match_substring_regex(found, _JSON_NUL)).as_py():
            raise InputError(f"sink {self._sink!r}: PostgreSQL stores no text with a NUL character: column {name!r}")
        return found

    def _check_text(self, name: str, column: pa.Array) -> None:
        if pc.any(pc.match_substring(column, "\0")).as_py():
            raise InputError(f"sink {self._sink!r}: PostgreSQL stores no text with a NUL character: column {name!r}")
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InputError(
                f"sink {self._sink!r}: column {name!r} holds text that is not UTF-8 ({printable(error)}); cast it to "
                "binary before"
            ) from None


def _is_in_range(column: pa.Array) -> bool:
    """Whether all times are in the years that are written. Compares numbers, since arithmetic on times may overflow."""
    dtype, per_day = column.type, 1
    if pa.types.is_timestamp(dtype):
        per_day = DAY_S * PER_SECOND[dtype.unit]
    elif pa.types.is_date64(dtype):
        per_day = DAY_S * PER_SECOND["ms"]
    ends = pc.min_max(column.view(pa.int32() if pa.types.is_date32(dtype) else pa.int64()))
    lowest, highest = ends["min"].as_py(), ends["max"].as_py()
    return lowest is None or (FIRST_DAY * per_day <= lowest and highest < (END_DAY + 1) * per_day)


def _written_as(dtype: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_decimal(dtype) or types.is_binary(dtype) or types.is_large_binary(dtype):
        return pa.string()
    if types.is_fixed_size_binary(dtype) or types.is_nested(dtype):
        return pa.string()
    if types.is_float16(dtype):
        return pa.float32()
    if types.is_date(dtype):
        return pa.date32()
    if types.is_timestamp(dtype):
        return pa.timestamp("us", None if dtype.tz is None else "UTC")
    return dtype


def names_in(first_piece: bytes) -> list[str]:
    """The names in the first line of such a text, given its first bytes, which have the whole line."""
    text = io.StringIO(first_piece.decode(errors="replace"), newline="")
    return next(reader(text), [])


def is_name(text: str) -> bool:
    """Whether PostgreSQL can keep ``text`` as the name of a table or column, whole."""
    return 0 < len(text.encode(errors="replace")) <= LONGEST_NAME and "\0" not in text


def check_columns(schema: pa.Schema, keys: tuple[str, ...], sink: str) -> None:
    """Raises ``ConfigurationError`` for columns that a table cannot have, and for keys that are no columns."""
    names = schema.names
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(f"sink {sink!r}: a table needs columns with different names, not {names}")
    for field in schema:
        if not is_name(field.name):
            raise ConfigurationError(
                f"sink {sink!r}: a column of a table cannot have the name {field.name!r}: give it one of 1 to "
                f"{LONGEST_NAME} bytes, without NUL"
            )
        if sql_type(field.type) is None:
            raise ConfigurationError(
                f"sink {sink!r}: column {field.name!r} of type {field.type} has no type in PostgreSQL here; cast it "
                "before, for example to text"
            )
    for key in keys:
        if key not in names:
            raise ConfigurationError(f"sink {sink!r}: key column {key!r} is not in the stream, which has {names}")
