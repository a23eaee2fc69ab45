"""Rows of Parquet files.

Rules: a file has all columns of the schema; others are not read. Values of a column may be of a narrower type of the
same kind. Row groups are read one by one, as a stream of pages. A cursor is the number of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from flinkplus.errors import InputError
from flinkplus.near import did_you_mean
from flinkplus.sources.files.directory import InputDirectory
from flinkplus.sources.files.position import OpenFile
from flinkplus.sources.files.records import FileBlock, FileFormat
from flinkplus.sources.files.seen import SeenFile
from flinkplus.sources.parquet import BATCH_ROWS, conformed_columns, parquet_file


@dataclass(frozen=True)
class ParquetFormat(FileFormat):
    """``strict``: as for text."""

    schema: pa.Schema
    strict: bool = False

    @override
    def blocks(self, directory: InputDirectory, at: OpenFile[SeenFile]) -> Iterator[FileBlock]:
        path = directory.full_path(at.file.path)
        try:
            opened = parquet_file(directory.open(at.file))
        except pa.ArrowInvalid as error:
            raise InputError(f"{path!r} cannot be read as Parquet: {error}") from error
        with opened as file:
            self._check(file.schema_arrow, path)
            first = 0
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if at.cursor < first + rows:
                    yield from self._group(file, group, first, at.cursor, path)
                first += rows

    def _group(self, file: pq.ParquetFile, group: int, first: int, cursor: int, path: str) -> Iterator[FileBlock]:
        """The rows of a row group from row ``cursor`` of the file on. ``first``: the number of its first row."""
        names = self.schema.names
        for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=names, use_threads=False):
            low = max(cursor - first, 0)
            if low < batch.num_rows:
                part = batch.slice(low)
                rows, invalid = conformed_columns(part, self.schema, self.strict, f"{path!r}", first + low)
                for field, column in zip(self.schema, rows.columns, strict=True):
                    if column.null_count and not field.nullable:
                        raise InputError(f"{path!r} has a null in the column {field.name!r}, which is NOT NULL")
                yield FileBlock(rows, np.arange(first + low + 1, first + batch.num_rows + 1), repaired=invalid)
            first += batch.num_rows

    def _check(self, found: pa.Schema, path: str) -> None:
        for field in self.schema:
            if field.name not in found.names:
                raise InputError(f"{path!r} has no column {field.name!r}{did_you_mean(field.name, found.names)}")
            there = found.field(field.name).type
            if not fits(there, field.type):
                raise InputError(f"{path!r}: the column {field.name!r} is {there}, not {field.type}")


_ALIKE: tuple[Callable[[Any], bool], ...] = (
    lambda dtype: pa.types.is_string(dtype) or pa.types.is_large_string(dtype),
    lambda dtype: pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype),
    lambda dtype: pa.types.is_timestamp(dtype) and dtype.tz is None,
    lambda dtype: pa.types.is_timestamp(dtype) and dtype.tz is not None,
    pa.types.is_date,
)


def fits(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type can be read as another: it is as wide, or a time of another unit; also inside."""
    if pa.types.is_dictionary(there):
        return fits(there.value_type, wanted)
    if pa.types.is_integer(there) and pa.types.is_integer(wanted):
        signs = pa.types.is_signed_integer(there) == pa.types.is_signed_integer(wanted)
        return bool(there.bit_width <= wanted.bit_width if signs else there.bit_width < wanted.bit_width)
    if pa.types.is_nested(there) and pa.types.is_nested(wanted):
        if there.id != wanted.id or there.num_fields != wanted.num_fields:
            return False
        parts = [(there.field(at), wanted.field(at)) for at in range(there.num_fields)]
        named = not pa.types.is_struct(there) or all(a.name == b.name for a, b in parts)
        return named and all(fits(a.type, b.type) for a, b in parts)
    if there == wanted:
        return True
    if pa.types.is_floating(there) and pa.types.is_floating(wanted):
        return bool(there.bit_width <= wanted.bit_width)
    if pa.types.is_decimal(there) and pa.types.is_decimal(wanted):
        whole, wanted_whole = there.precision - there.scale, wanted.precision - wanted.scale
        return bool(there.scale <= wanted.scale and whole <= wanted_whole)
    return any(kind(there) and kind(wanted) for kind in _ALIKE)
