"""CSV files, compressed or not.

Rules: with a header the columns of a file are found by name, in any order, and others are ignored; without one they
are those of the schema. An empty value is null; ``""`` is an empty text. Empty lines are no rows. Times without an
offset are in UTC. A record is parsed in the same way alone and among others.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from typing_extensions import override

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.near import did_you_mean
from flinkplus.operators.base.values import is_list
from flinkplus.sources.files.directory import InputDirectory
from flinkplus.sources.files.position import OpenFile
from flinkplus.sources.files.records import (
    CHUNK_BYTES,
    BrokenRecords,
    FileBlock,
    FileFormat,
    Records,
    conformed,
    parse_each,
    records_of,
)
from flinkplus.sources.files.seen import SeenFile

_HEADER_CHUNK = 1 << 14
_ZONED = r":\d{2}(\.\d+)?(Z|[+-]\d{2}(:?\d{2})?)$"
_COLUMN_NUMBER = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?")
_ROW_NUMBER = re.compile(r"Row #\d+: ")


@dataclass(frozen=True)
class CsvFormat(FileFormat):
    """``header``: the first line of each file names the columns. ``delimiter``, ``quote``: one character each.
    ``multiline``: a value in quotes may have ends of lines. ``skip``: as for JSON.

    Raises ``ConfigurationError`` for columns and characters that CSV does not have.
    """

    schema: pa.Schema
    header: bool = True
    delimiter: str = ","
    quote: str = '"'
    multiline: bool = False
    skip: bool = False
    chunk_bytes: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        for name, sign in (("delimiter", self.delimiter), ("quote", self.quote)):
            if len(sign) != 1 or not sign.isascii() or sign in "\r\n":
                raise ConfigurationError(f"{name} must be one ASCII character, not {sign!r}")
        for field in self.schema:
            if pa.types.is_nested(field.type) or is_list(field.type) or pa.types.is_duration(field.type):
                raise ConfigurationError(
                    f"the column {field.name!r} cannot be read from CSV as {field.type}; declare it as a string, and "
                    "decode it with map_batches"
                )

    @override
    def blocks(self, directory: InputDirectory, at: OpenFile[SeenFile]) -> Iterator[FileBlock]:
        quote = ord(self.quote) if self.multiline else None
        names = self._names(directory, at, quote)
        for records in records_of(directory, at, self.chunk_bytes, quote):
            blank = records.ends <= records.starts
            if self.header and records.first == 0:
                blank[0] = True

            def parse(start: int, stop: int, records: Records = records, blank: np.ndarray = blank) -> pa.RecordBatch:
                while blank[start]:  # the header must not be parsed
                    start += 1
                return self._parsed(records.between(start, stop), int((~blank[start:stop]).sum()), names)

            yield parse_each(records, blank, parse, self.schema, self.skip)

    def _names(self, directory: InputDirectory, at: OpenFile[SeenFile], quote: int | None) -> list[str]:
        """The columns of a file, in order. Raises ``InputError`` when one of the schema is missing."""
        if not self.header:
            return list(self.schema.names)
        found = records_of(directory, replace(at, cursor=0, record=0), _HEADER_CHUNK, quote)
        records = next(found, None)
        found.close()  # type: ignore[attr-defined]
        if records is None:  # an empty file
            return list(self.schema.names)
        path = records.path
        line = records[0].decode("utf-8", "replace")
        names = next(csv.reader([line], delimiter=self.delimiter, quotechar=self.quote), [])
        for name in self.schema.names:
            if names.count(name) != 1:
                problem = "two columns" if name in names else "no column"
                raise InputError(f"{path!r} has {problem} {name!r} in its header{did_you_mean(name, names)}")
        return names

    def _parsed(self, data: bytes, rows: int, names: list[str]) -> pa.RecordBatch:
        table = self._table(data, names)
        if table.num_rows != rows:
            raise BrokenRecords("not one row in a line")
        columns = []
        for field, column in zip(self.schema, table.columns, strict=True):
            try:
                columns.append(_instants(column, field.type) if _is_instant(field.type) else column)
            except pa.ArrowException as error:
                raise BrokenRecords(f"column {field.name!r}: {error}") from error
        return conformed(pa.table(columns, names=self.schema.names), self.schema)

    def _table(self, data: bytes, names: list[str]) -> pa.Table:
        types = {f.name: pa.string() if _is_instant(f.type) else f.type for f in self.schema}
        unused = {name: pa.string() for name in names if name not in types}
        try:
            return pyarrow.csv.read_csv(
                pa.BufferReader(data),
                pyarrow.csv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
                pyarrow.csv.ParseOptions(
                    delimiter=self.delimiter, quote_char=self.quote, newlines_in_values=self.multiline
                ),
                pyarrow.csv.ConvertOptions(
                    column_types={**unused, **types},
                    include_columns=self.schema.names,
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowException as error:
            text = _COLUMN_NUMBER.sub(lambda found: f"column {names[int(found[1])]!r}: ", str(error))
            raise BrokenRecords(_ROW_NUMBER.sub("", text)) from error


def _is_instant(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(dtype) and dtype.tz is not None)


def _instants(texts: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    """Texts with or without an offset as instants."""
    zoned = pc.match_substring_regex(texts, _ZONED)
    nothing = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, texts, nothing).cast(dtype)
    without = pc.if_else(zoned, nothing, texts).cast(pa.timestamp(dtype.unit)).cast(dtype)
    return pc.coalesce(with_zone, without)
