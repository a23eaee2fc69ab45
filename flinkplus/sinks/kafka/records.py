"""Rows of a stream as records of a topic: key, value, headers and partition; and the files in which they are staged.

Rules:

- A row that no record can hold is an error in the slot, where it is made; the driver only passes bytes on.
- What a JSON value holds, ``from_kafka`` with the columns of the stream reads again. Finer times than microseconds are
  cut; times are text, decimals are text.
- Staged records do not depend on the columns of the program: the next program may have others.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from flinkplus.errors import ConfigurationError, InputError, first_line
from flinkplus.near import did_you_mean
from flinkplus.operators.base.values import is_list
from flinkplus.sinks.file_writer import Encoder
from flinkplus.sources.kafka.columns import HEADERS

VALUES = ("json", "bytes", "text")
VALUE = "value"
"""The column that is the record's value, unless that is JSON."""
STAGED = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("partition", pa.int32()),
    ]
)
STAGED_FORMAT = b"1"
"""In the metadata of the schema."""
COMPRESSION = "lz4"
MAX_BYTES = 1_000_000
"""Of a record, as librdkafka has it where ``message.max.bytes`` is not given."""
HEADER = ("key", "value")
BYTES_OF_HEADER = 10
"""Beside its name and value, at most."""
BYTES_OF_RECORD = 36
"""Beside its key, value and headers, as librdkafka counts when it compares a record with ``message.max.bytes``."""

Staged = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int | None]
"""Key, value, headers, partition; ``None``: the partition follows from the key."""


@dataclass(frozen=True)
class RecordForm:
    """How rows become records.

    ``value``: ``json``: an object of all columns except for ``headers`` and ``partition``; ``bytes``, ``text``: the
    column ``value``. ``key``, ``headers``, ``partition``: columns. ``max_bytes``: of a record.
    """

    value: str = "json"
    key: tuple[str, ...] = ()
    headers: str | None = None
    partition: str | None = None
    max_bytes: int = MAX_BYTES

    def value_columns(self, schema: pa.Schema) -> list[str]:
        """The columns in the record's value."""
        if self.value != "json":
            return [VALUE]
        return [name for name in schema.names if name not in (self.headers, self.partition)]

    def check(self, schema: pa.Schema, sink: str) -> None:
        """Raises ``ConfigurationError`` when rows of ``schema`` cannot become records of this form."""
        if len(set(schema.names)) < len(schema):
            raise ConfigurationError(f"sink {sink!r}: a record needs columns with different names, not {schema.names}")
        for what, name in (*(("key", name) for name in self.key), *self._others()):
            if name not in schema.names:
                near = did_you_mean(name, schema.names)
                raise ConfigurationError(
                    f"sink {sink!r}: {what} column {name!r} is not in the stream, which has {schema.names}{near}"
                )
        if self.partition is not None and not pa.types.is_integer(schema.field(self.partition).type):
            raise ConfigurationError(f"sink {sink!r}: partition column {self.partition!r} must hold whole numbers")
        if self.headers is not None and _header_types(schema.field(self.headers).type) is None:
            raise ConfigurationError(
                f"sink {sink!r}: headers column {self.headers!r} must be array<struct<key: string, value: binary>> or "
                f"map<string, binary>, not {schema.field(self.headers).type}"
            )
        self._check_values(schema, sink)

    def _others(self) -> list[tuple[str, str]]:
        named = (("headers", self.headers), ("partition", self.partition))
        return [(what, name) for what, name in named if name is not None]

    def _check_values(self, schema: pa.Schema, sink: str) -> None:
        columns = self.value_columns(schema)
        if self.value == "json":
            if not columns:
                raise ConfigurationError(f"sink {sink!r}: no column is left for the value")
        else:
            wanted, fits = ("binary", _is_binary) if self.value == "bytes" else ("string", _is_text)
            if VALUE not in schema.names or not fits(schema.field(VALUE).type):
                raise ConfigurationError(
                    f"sink {sink!r}: value={self.value!r} takes the column 'value' of type {wanted}; the stream has "
                    f"{', '.join(f'{field.name} {field.type}' for field in schema)}"
                )
            used = {VALUE, *self.key, self.headers, self.partition}
            if lost := [name for name in schema.names if name not in used]:
                raise ConfigurationError(
                    f"sink {sink!r}: column {lost[0]!r} would be in no part of a record: leave it out before, or take "
                    "value='json'"
                )
        in_json = [*(columns if self.value == "json" else ()), *(self.key if not self._is_plain_key(schema) else ())]
        for name in in_json:
            if (wrong := _not_in_json(schema.field(name).type)) is not None:
                raise ConfigurationError(
                    f"sink {sink!r}: column {name!r} cannot be written as JSON: it holds {wrong}; cast it before"
                )

    def _is_plain_key(self, schema: pa.Schema) -> bool:
        """Whether the key is one column of text or bytes, which is the key as it is."""
        if len(self.key) != 1:
            return False
        dtype = schema.field(self.key[0]).type
        return bool(_is_text(dtype) or _is_binary(dtype))

    def records(self, batch: pa.RecordBatch, sink: str) -> pa.RecordBatch:
        """The rows of ``batch`` as a batch of ``STAGED``. Raises ``InputError`` for one that no record can hold."""
        rows = batch.num_rows
        columns = {
            "key": self._keys(batch, sink),
            "value": self._values(batch, sink),
            "headers": pa.nulls(rows, HEADERS) if self.headers is None else _headers(batch, self.headers, sink),
            "partition": pa.nulls(rows, pa.int32()) if self.partition is None else self._partitions(batch, sink),
        }
        made = pa.RecordBatch.from_arrays(list(columns.values()), schema=STAGED)
        self._check_sizes(made, sink)
        return made

    def _keys(self, batch: pa.RecordBatch, sink: str) -> pa.Array:
        if not self.key:
            return pa.nulls(batch.num_rows, pa.binary())
        if self._is_plain_key(batch.schema):
            return _as_bytes(batch, self.key[0], sink)
        if len(self.key) > 1:
            return _json_objects(batch, self.key, sink)
        column = batch.column(self.key[0])
        return _json_texts(column, lambda at: f"sink {sink!r}: key column {self.key[0]!r}, row {at} of the batch")

    def _values(self, batch: pa.RecordBatch, sink: str) -> pa.Array:
        if self.value == "json":
            return _json_objects(batch, self.value_columns(batch.schema), sink)
        return _as_bytes(batch, VALUE, sink)

    def _partitions(self, batch: pa.RecordBatch, sink: str) -> pa.Array:
        column = batch.column(self.partition)
        try:
            numbers = pc.cast(column, pa.int32())
        except pa.ArrowInvalid as error:
            raise InputError(f"sink {sink!r}: partition column {self.partition!r}: {first_line(error)}") from None
        least = pc.min(numbers).as_py()
        if least is not None and least < 0:
            raise InputError(f"sink {sink!r}: partition column {self.partition!r} holds {least}")
        return numbers

    def _check_sizes(self, records: pa.RecordBatch, sink: str) -> None:
        sizes = pc.add(*(pc.fill_null(pc.binary_length(records.column(name)), 0) for name in ("key", "value")))
        if self.headers is not None:
            sizes = pc.add(sizes, pa.array(map(_bytes_of, records.column("headers").to_pylist()), pa.int32()))
        content = pc.max(sizes).as_py()
        if content is not None and (largest := content + BYTES_OF_RECORD) > self.max_bytes:
            raise InputError(
                f"sink {sink!r}: a record of {largest} bytes is larger than message.max.bytes ({self.max_bytes}): "
                "raise that in config and max.message.bytes of the topic, or make rows smaller"
            )


class RecordEncoder(Encoder):
    """Writes rows as staged records: a stream of Arrow."""

    def __init__(self, stream: Any, form: RecordForm, sink: str) -> None:
        self._form, self._sink = form, sink
        schema = STAGED.with_metadata({b"flinkplus": STAGED_FORMAT})
        self._writer = pa.ipc.new_stream(stream, schema, options=pa.ipc.IpcWriteOptions(compression=COMPRESSION))

    @override
    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(self._form.records(batch, self._sink))

    @override
    def finish(self) -> None:
        self._writer.close()


def staged_records(content: bytes) -> Iterator[Staged]:
    """The records of a staged file. Raises ``ValueError`` for another format."""
    reader = pa.ipc.open_stream(content)
    if (reader.schema.metadata or {}).get(b"flinkplus") != STAGED_FORMAT or reader.schema.names != STAGED.names:
        raise ValueError("its format is another one")
    for batch in reader:
        yield from records_in(batch)


def records_in(made: pa.RecordBatch) -> Iterator[Staged]:
    """The records that ``RecordForm.records`` has made."""
    keys, values, headers, partitions = (column.to_pylist() for column in made.columns)
    for key, value, pairs, partition in zip(keys, values, headers, partitions, strict=True):
        named = None if pairs is None else [(pair["key"], pair["value"]) for pair in pairs]
        yield key, value, named, partition


def content_of(records: Iterable[Staged]) -> bytes:
    """Bytes that say what ``records`` are: equal for equal records, and different for others."""
    parts: list[bytes] = []
    for key, value, headers, partition in records:
        names = [] if headers is None else [part for name, text in headers for part in (name.encode(), text)]
        for part in (key, value, *names):
            parts.append(b"-" if part is None else b"%d:%b" % (len(part), part))
        parts.append(b"%d/%d;" % (-1 if headers is None else len(headers), -1 if partition is None else partition))
    return b"".join(parts)


# --- columns ----------------------------------------------------------------------------------------------------------


def _is_text(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))


def _is_binary(dtype: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(dtype) or types.is_large_binary(dtype) or types.is_fixed_size_binary(dtype))


def _as_bytes(batch: pa.RecordBatch, name: str, sink: str) -> pa.Array:
    column = batch.column(name)
    if _is_text(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            raise InputError(
                f"sink {sink!r}: column {name!r} holds text that is not UTF-8; cast it to binary before"
            ) from None
    return pc.cast(column, pa.binary())


def _header_types(dtype: pa.DataType) -> tuple[pa.DataType, pa.DataType] | None:
    """The types of names and values; ``None``: this is no type of headers."""
    if pa.types.is_map(dtype):
        found = (dtype.key_type, dtype.item_type)
    elif is_list(dtype) and pa.types.is_struct(dtype.value_type) and {f.name for f in dtype.value_type} == {*HEADER}:
        found = tuple(dtype.value_type.field(name).type for name in HEADER)
    else:
        return None
    name, value = found
    return (name, value) if _is_text(name) and (_is_text(value) or _is_binary(value)) else None


def _headers(batch: pa.RecordBatch, name: str, sink: str) -> pa.Array:
    try:
        found = [None if one is None else [_pair(pair) for pair in one] for one in batch.column(name).to_pylist()]
    except UnicodeDecodeError:
        raise InputError(f"sink {sink!r}: headers column {name!r} holds text that is not UTF-8") from None
    if any(pair["key"] is None for pairs in found if pairs is not None for pair in pairs):
        raise InputError(f"sink {sink!r}: headers column {name!r} holds a header without a key")
    return pa.array(found, HEADERS)


def _pair(pair: Any) -> dict[str, Any]:
    """A header, which Arrow gives as a ``dict`` of a list's struct, or as a pair of a map. ``None``: a null."""
    if pair is None:
        return dict.fromkeys(HEADER)
    key, value = (pair["key"], pair["value"]) if isinstance(pair, dict) else pair
    return {"key": key, "value": value.encode() if isinstance(value, str) else value}


def _bytes_of(headers: Sequence[dict[str, Any]] | None) -> int:
    return sum(len(one["key"].encode()) + len(one["value"] or b"") + BYTES_OF_HEADER for one in headers or ())


# --- JSON -------------------------------------------------------------------------------------------------------------


def _not_in_json(dtype: pa.DataType) -> pa.DataType | None:
    """The first type in ``dtype`` that is not written as JSON."""
    types = pa.types
    if is_list(dtype):
        return _not_in_json(dtype.value_type)
    if types.is_struct(dtype):
        return next((wrong for field in dtype if (wrong := _not_in_json(field.type)) is not None), None)
    known = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, _is_text, types.is_date)
    return None if any(is_it(dtype) for is_it in (*known, types.is_timestamp)) else dtype


def _written_as(dtype: pa.DataType) -> pa.DataType:
    """What a column is cast to before it becomes values of Python."""
    if is_list(dtype):
        return pa.list_(_written_as(dtype.value_type))
    if pa.types.is_struct(dtype):
        return pa.struct([pa.field(field.name, _written_as(field.type), field.nullable) for field in dtype])
    if pa.types.is_timestamp(dtype):
        return pa.timestamp("us", None if dtype.tz is None else "UTC")
    if pa.types.is_date(dtype):
        return pa.date32()
    return pa.float32() if pa.types.is_float16(dtype) else dtype


def _as_json(value: Any) -> str:
    """What ``json`` has no form for."""
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    raise TypeError(f"{type(value).__name__} is not JSON")


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_as_json).encode


def _values_of(column: pa.Array) -> list[Any]:
    """Raises ``ValueError`` or ``ArrowException`` for values that Python does not have, such as the year 20000."""
    written = _written_as(column.type)
    found: list[Any] = (column if column.type == written else pc.cast(column, written, safe=False)).to_pylist()
    return found


def _json_objects(batch: pa.RecordBatch, names: Sequence[str], sink: str) -> pa.Array:
    """An object of the columns ``names`` for each row."""
    try:
        columns = [_values_of(batch.column(name)) for name in names]
        texts = [_encode(dict(zip(names, row, strict=True))).encode() for row in zip(*columns, strict=True)]
    except (ValueError, OverflowError, pa.ArrowException):
        for name in names:
            _json_texts(batch.column(name), _place(sink, name))
        raise
    return pa.array(texts, pa.binary())


def _place(sink: str, name: str) -> Callable[[int], str]:
    return lambda at: f"sink {sink!r}: column {name!r}, row {at} of the batch"


def _json_texts(column: pa.Array, place: Callable[[int], str]) -> pa.Array:
    """Each value by itself; a null stays one. ``place``: of the value with this number, for the error."""
    try:
        return pa.array(map(_json_text, _values_of(column)), pa.binary())
    except (ValueError, OverflowError, pa.ArrowException):
        for at in range(len(column)):
            try:
                (value,) = _values_of(column.slice(at, 1))
                _json_text(value)
            except (ValueError, OverflowError, pa.ArrowException) as error:
                raise InputError(f"{place(at)} cannot be written as JSON: {first_line(error)}") from None
        raise


def _json_text(value: Any) -> bytes | None:
    return None if value is None else _encode(value).encode()
