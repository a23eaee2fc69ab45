"""From the values of records to Arrow, many at once; records that cannot be decoded are found one by one.

Rules:

- A value is decoded in the same way alone and among others, so that replayed rows are the same in other batches.
- JSON: one object for each record. Fields that the schema has not are ignored, fields that a record has not are null.
  A value of another type than the schema's is an error; nothing is guessed.
- Bytes reach Arrow's JSON parser only if they begin with ``{``, end with ``}`` and are UTF-8. It does not look for
  these by itself, and it crashes on some other bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.json

from flinkplus.errors import ConfigurationError, first_line
from flinkplus.operators.base.values import is_list
from flinkplus.printable import printable

ValueFormat = Literal["json", "bytes", "text"]
Values = Sequence[bytes | None]
BYTES_SCHEMA = pa.schema([("value", pa.binary())])
TEXT_SCHEMA = pa.schema([("value", pa.string())])
LONGEST_REASON = 300
_NOT_AN_OBJECT = "not a JSON object"


@dataclass(frozen=True)
class Decoded:
    """``rows``: of the values that could be decoded, in order. ``broken``: for each of the others, by its number among
    all, the reason."""

    rows: pa.RecordBatch
    broken: Mapping[int, str]


def value_schema(source: str, kind: str, schema: pa.Schema | None) -> pa.Schema:
    """The columns of decoded values. Raises ``ConfigurationError`` when they cannot be had from ``kind``."""
    if kind == "json":
        if schema is None:
            raise ConfigurationError(f"source {source!r}: value='json' needs a schema: the fields of the objects")
        _check_json(source, schema)
        return schema
    if schema is not None:
        raise ConfigurationError(f"source {source!r}: value={kind!r} has one column, 'value', and takes no schema")
    if kind not in ("bytes", "text"):
        raise ConfigurationError(f"source {source!r}: value must be 'json', 'bytes' or 'text', not {kind!r}")
    return BYTES_SCHEMA if kind == "bytes" else TEXT_SCHEMA


def decoder(kind: str, schema: pa.Schema) -> Callable[[Values], Decoded]:
    """Decodes values to rows of ``schema``."""
    if kind == "json":
        return _JsonDecoder(schema)
    return _decoded_text if kind == "text" else lambda values: Decoded(_single(values, BYTES_SCHEMA), {})


def _single(values: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, schema.field(0).type)], schema=schema)


def _decoded_text(values: Values) -> Decoded:
    texts: list[str | None] = []
    broken = {}
    for number, value in enumerate(values):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            broken[number] = f"not UTF-8 at byte {error.start}"
    return Decoded(_single(texts, TEXT_SCHEMA), broken)


class _JsonDecoder:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        parsed = pa.schema([pa.field(f.name, _parsed_type(f.type), f.nullable) for f in schema])
        self._options = pyarrow.json.ParseOptions(
            explicit_schema=parsed, newlines_in_values=True, unexpected_field_behavior="ignore"
        )

    def __call__(self, values: Values) -> Decoded:
        objects = [b"" if value is None else value for value in values]
        broken: dict[int, str] = {}
        if not all(map(_is_object, objects)):
            objects = [value.strip() for value in objects]
            broken = {n: _why_not(value, values[n]) for n, value in enumerate(objects) if not _is_object(value)}
        numbers = [n for n in range(len(objects)) if n not in broken] if broken else range(len(objects))
        batches = self._decoded(objects, numbers, broken)
        if not batches:
            return Decoded(pa.RecordBatch.from_pylist([], schema=self._schema), broken)
        return Decoded(batches[0] if len(batches) == 1 else pa.concat_batches(batches), broken)

    def _decoded(self, objects: list[bytes], numbers: Sequence[int], broken: dict[int, str]) -> list[pa.RecordBatch]:
        """The rows of the objects ``numbers``; half of them at a time where one cannot be decoded."""
        if not numbers:
            return []
        try:
            return [self._parsed(objects if len(numbers) == len(objects) else [objects[n] for n in numbers])]
        except (pa.ArrowException, ValueError) as error:
            if len(numbers) == 1:
                broken[numbers[0]] = _reason(error)
                return []
        middle = len(numbers) // 2
        return [
            batch for half in (numbers[:middle], numbers[middle:]) for batch in self._decoded(objects, half, broken)
        ]

    def _parsed(self, objects: Sequence[bytes]) -> pa.RecordBatch:
        """One row for each object. Raises ``ArrowException`` or ``ValueError`` when any is not what it should be.

        A line break between two objects can stand in neither: not in a string, and not between ``}`` and ``{``. So if
        there are as many rows as objects, each has one.
        """
        text = b"\n".join(objects)
        if not text.isascii():
            text.decode()
        table = pyarrow.json.read_json(
            pa.BufferReader(text),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=self._options,
        )
        if table.num_rows != len(objects):
            raise ValueError(f"{table.num_rows} JSON objects in a record")
        if table.schema != self._schema:
            table = table.cast(self._schema)
        (batch,) = table.combine_chunks().to_batches()
        return batch


def _is_object(value: bytes) -> bool:
    return value.startswith(b"{") and value.endswith(b"}")


def _why_not(stripped: bytes, value: bytes | None) -> str:
    if value is None:
        return "no value (a tombstone)"
    return _NOT_AN_OBJECT if stripped else "an empty value"


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    text = first_line(error).removeprefix("JSON parse error: ").removesuffix(" in row 0")
    return printable(text, LONGEST_REASON)


def _parsed_type(dtype: pa.DataType) -> pa.DataType:
    """What is parsed for a column: dates are read as text first."""
    if pa.types.is_date(dtype):
        return pa.string()
    if is_list(dtype):
        return pa.list_(_parsed_type(dtype.value_type))
    if pa.types.is_struct(dtype):
        return pa.struct([pa.field(f.name, _parsed_type(f.type), f.nullable) for f in dtype])
    return dtype


def _check_json(source: str, schema: pa.Schema) -> None:
    for field in schema:
        if (wrong := _not_in_json(field.type)) is not None:
            raise ConfigurationError(
                f"source {source!r}: the column {field.name!r} cannot be read from JSON as {wrong}; take value='text' "
                "and decode it with map_batches"
            )
    try:
        nullable = pa.schema([pa.field(field.name, field.type) for field in schema])
        _JsonDecoder(nullable)._parsed([b"{}"])
    except (pa.ArrowException, ValueError) as error:
        raise ConfigurationError(f"source {source!r}: the schema cannot be read from JSON: {error}") from error


def _not_in_json(dtype: pa.DataType) -> pa.DataType | None:
    """The first type in ``dtype`` that JSON does not have."""
    if pa.types.is_map(dtype) or pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype):
        return dtype
    if is_list(dtype):
        return _not_in_json(dtype.value_type)
    if pa.types.is_struct(dtype):
        return next((wrong for field in dtype if (wrong := _not_in_json(field.type)) is not None), None)
    return None
