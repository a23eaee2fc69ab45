"""Files of JSON objects, one a line, compressed or not.

Rules: fields that the schema lacks are ignored, and fields that an object lacks are null. Values must be of the types
of the schema: numbers are not made of texts, nor texts of numbers. Times are texts as in ISO 8601; without an offset
they are in UTC. A line is parsed in the same way alone and among others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.json
from typing_extensions import override

from flinkplus.errors import ConfigurationError
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

_ROW_NUMBER = re.compile(r" in row \d+$")


@dataclass(frozen=True)
class JsonFormat(FileFormat):
    """``skip``: broken lines are passed over and counted; otherwise they are an error.

    Raises ``ConfigurationError`` for columns that JSON does not have.
    """

    schema: pa.Schema
    skip: bool = False
    chunk_bytes: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        for field in self.schema:
            if (wrong := _not_in_json(field.type)) is not None:
                raise ConfigurationError(
                    f"the column {field.name!r} cannot be read from JSON as {wrong}; declare it as a string, or read "
                    "the lines as text, and decode it with map_batches"
                )

    @override
    def blocks(self, directory: InputDirectory, at: OpenFile[SeenFile]) -> Iterator[FileBlock]:
        options = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([pa.field(f.name, _parsed_type(f.type)) for f in self.schema]),
            unexpected_field_behavior="ignore",
        )
        for records in records_of(directory, at, self.chunk_bytes):
            blank = records.blank()

            def parse(start: int, stop: int, records: Records = records, blank: np.ndarray = blank) -> pa.RecordBatch:
                _check_objects(records, start, stop, blank)
                return self._parsed(records.between(start, stop), int((~blank[start:stop]).sum()), options)

            yield parse_each(records, blank, parse, self.schema, self.skip)

    def _parsed(self, data: bytes, objects: int, options: pyarrow.json.ParseOptions) -> pa.RecordBatch:
        """The rows of lines that each begin with ``{`` and end with ``}``.

        The parser would take an object over several lines, and several in a line. But no object that is not complete
        ends with ``}`` and continues with ``{``. So if there are as many rows as lines, each line has one.
        """
        if not data.isascii():
            try:
                data.decode()
            except UnicodeDecodeError as error:
                raise BrokenRecords(f"not UTF-8 at byte {error.start}") from error
        try:
            table = pyarrow.json.read_json(
                pa.BufferReader(data),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
                parse_options=options,
            )
        except pa.ArrowException as error:
            raise BrokenRecords(_ROW_NUMBER.sub("", str(error).removeprefix("JSON parse error: "))) from error
        if table.num_rows != objects:
            raise BrokenRecords("more than one JSON object in a line")
        return conformed(table, self.schema)


def _check_objects(records: Records, start: int, stop: int, blank: np.ndarray) -> None:
    """Raises ``BrokenRecords`` unless each line that is not blank begins and ends as an object does. (Arrow's parser is
    given only such lines: it may crash on others.)"""
    array = np.frombuffer(records.data, np.uint8)
    starts, last = records.starts[start:stop], np.maximum(records.ends[start:stop] - 1, 0)
    plain = (array[starts % len(array)] == ord("{")) & (array[last] == ord("}"))
    for index in np.flatnonzero(~(plain | blank[start:stop])):
        line = records[start + int(index)].strip()
        if not (line.startswith(b"{") and line.endswith(b"}")):
            raise BrokenRecords("not a JSON object")


def _parsed_type(dtype: pa.DataType) -> pa.DataType:
    """What the parser reads for a type: texts for dates, which it would expect as numbers."""
    if pa.types.is_date(dtype):
        return pa.string()
    if is_list(dtype):
        return pa.list_(_parsed_type(dtype.value_type))
    if pa.types.is_struct(dtype):
        return pa.struct([pa.field(field.name, _parsed_type(field.type)) for field in dtype])
    return dtype


def _not_in_json(dtype: pa.DataType) -> pa.DataType | None:
    """The first type in ``dtype`` that is not read from JSON."""
    if is_list(dtype):
        return _not_in_json(dtype.value_type)
    if pa.types.is_struct(dtype):
        return next((wrong for field in dtype if (wrong := _not_in_json(field.type)) is not None), None)
    known = (
        pa.types.is_boolean(dtype)
        or pa.types.is_integer(dtype)
        or pa.types.is_floating(dtype)
        or pa.types.is_decimal(dtype)
        or pa.types.is_date(dtype)
        or pa.types.is_timestamp(dtype)
        or pa.types.is_string(dtype)
        or pa.types.is_large_string(dtype)
    )
    return None if known else dtype
