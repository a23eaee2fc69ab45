"""Lines of text, one per row: the columns joined by a separator. Committed like Parquet files, so that
``spark.read.text`` of the directory sees each line once.

A null is an empty string. A line break inside a value is written as it is, as Spark does: a reader sees two lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sinks.file_writer import Encoder, FileSink


@dataclass(frozen=True)
class TextSink(FileSink):
    """Lines of text. ``separator``: between the columns."""

    suffix: ClassVar[str] = "txt"
    separator: str = "\t"

    def check_schema(self, schema: pa.Schema) -> None:
        if len(schema) == 0:
            raise ConfigurationError(f"sink {self.name!r}: text needs at least one column")
        for field in schema:
            if not _has_text_form(field.type):
                raise ConfigurationError(
                    f"sink {self.name!r}: column {field.name!r} of type {field.type} has no text form; make it a string"
                )

    def settings(self) -> Mapping[str, JsonValue]:
        return {**super().settings(), "separator": self.separator}

    def encoder(self, stream: Any, schema: pa.Schema) -> Encoder:
        return _TextEncoder(stream, self.separator)


class _TextEncoder(Encoder):
    """One text file."""

    def __init__(self, stream: Any, separator: str) -> None:
        self._stream = stream
        self._separator = separator

    def write(self, batch: pa.RecordBatch) -> None:
        self._stream.write(lines(batch, self._separator))

    def finish(self) -> None:
        return None


def lines(batch: pa.RecordBatch, separator: str) -> pa.Buffer:
    """The rows of ``batch``, which has at least one, as UTF-8 lines, the last one ended too."""
    columns = [column.cast(pa.large_string()) for column in batch.columns]
    scalar = [pa.scalar(text, pa.large_string()) for text in ("\n", "", separator)]
    # Joined twice: the columns by the separator, then the line with an empty string by a line break, which ends it.
    joined = columns[0]
    if len(columns) > 1:
        joined = pc.binary_join_element_wise(*columns, scalar[2], null_handling="replace", null_replacement="")
    ended = pc.binary_join_element_wise(joined, scalar[1], scalar[0], null_handling="replace", null_replacement="")
    offsets = memoryview(ended.buffers()[1]).cast("q")
    begin, end = offsets[ended.offset], offsets[ended.offset + len(ended)]
    return ended.buffers()[2].slice(begin, end - begin)


def _has_text_form(dtype: pa.DataType) -> bool:
    types = pa.types
    numbers = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal)
    others = (types.is_string, types.is_large_string, types.is_date, types.is_timestamp)
    return any(is_kind(dtype) for is_kind in (*numbers, *others))
