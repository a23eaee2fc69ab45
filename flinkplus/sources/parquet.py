"""Rows of Parquet files, as Spark stages a DataFrame for a job to read and read again.

Rules:

- Planned in the driver: the files in the given order, with the number of rows of each row group. A file that has
  others later is an ``InputError``.
- Subtask *i* of *p* reads one contiguous *p*-th of all rows, in their order.
- Row groups are read one by one, as a stream of pages: memory is bounded by pages and batches, not by row groups.
- The cursor of a split is the number, within its row group, of the next row.
- Text that is not UTF-8 is replaced and its rows are counted in ``metrics["invalid_lines"]``; or, with
  ``errors="strict"``, it is an ``InputError`` that names file, row and column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from typing_extensions import override

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sources.base import Source
from flinkplus.sources.dealing import Extent
from flinkplus.sources.splits import Block, SplitReader, check_options, redealt
from flinkplus.sources.utf8 import invalid_rows, repaired
from flinkplus.state.file_system import filesystem_of

BATCH_ROWS = 8192
_BUFFER_BYTES = 1 << 20
_READ_ERRORS = (OSError, pa.ArrowException)


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows ``[start, end)`` of a row group that has ``group_rows``."""

    file: str
    row_group: int
    group_rows: int
    start: int
    end: int

    @property
    def identity(self) -> tuple[str | int, ...]:
        """The file's name (not its directory), the row group and its size, and the rows."""
        return self.file.rsplit("/", 1)[-1], self.row_group, self.group_rows, self.start, self.end


@dataclass(frozen=True)
class StagedParquet(Source):
    """The rows of ``files`` (local paths or URIs that pyarrow.fs knows), with the columns of ``schema``.

    ``repeat``: how many times to read everything. ``groups``, by ``planned``: for each file the rows of its row groups.
    """

    name: str
    files: tuple[str, ...]
    schema: pa.Schema
    repeat: int = 1
    errors: str = "replace"
    groups: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        check_options(self.name, self.repeat, self.errors)

    @override
    def planned(self) -> StagedParquet:
        return self if self.groups is not None else replace(self, groups=tuple(map(self._row_groups, self.files)))

    @override
    def settings(self) -> Mapping[str, JsonValue]:
        return {"repeat": self.repeat, "rows": ", ".join(f"{field.name} {field.type}" for field in self.schema)}

    @override
    def split_plan(self) -> JsonValue:
        return None if self.groups is None else [[f, list(g)] for f, g in zip(self.files, self.groups, strict=True)]

    @override
    def with_split_plan(self, plan: Any) -> StagedParquet:
        groups = tuple(tuple(map(int, rows)) for _, rows in plan)
        return replace(self, files=tuple(str(file) for file, _ in plan), groups=groups)

    def staged_at(self, directory: str) -> StagedParquet:
        """This source, planned, over the Parquet files in ``directory`` (a local path or URI), in Spark's order.

        Raises ``InputError`` when the directory cannot be read; no files are no rows.
        """
        try:
            filesystem, inner = filesystem_of(directory)
            found = filesystem.get_file_info(pyarrow.fs.FileSelector(inner))
        except _READ_ERRORS as error:
            raise InputError(f"source {self.name!r}: cannot read the directory {directory!r}: {error}") from error
        names = sorted((i.base_name for i in found if i.is_file and i.extension == "parquet"), key=_by_numbers)
        files = tuple(f"{directory.rstrip('/')}/{name}" for name in names if not name.startswith((".", "_")))
        return replace(self, files=files, groups=None).planned()

    def _row_groups(self, path: str) -> tuple[int, ...]:
        try:
            with open_parquet(path) as file:
                missing = [name for name in self.schema.names if name not in file.schema_arrow.names]
                if missing:
                    raise InputError(f"source {self.name!r}: {path!r} has no column {missing[0]!r}")
                return tuple(file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))
        except _READ_ERRORS as error:
            raise InputError(f"source {self.name!r}: cannot read {path!r}: {error}") from error

    def ranges(self, index: int, parallelism: int) -> list[RowRange]:
        """What subtask ``index`` of ``parallelism`` reads."""
        if self.groups is None:
            raise ConfigurationError(f"source {self.name!r} is not planned; the driver must call planned()")
        total = sum(map(sum, self.groups))
        begin, end = total * index // parallelism, total * (index + 1) // parallelism
        return row_ranges(self.files, self.groups, begin, end)

    @override
    def reader(self, index: int, parallelism: int) -> SplitReader[RowRange]:
        return _ParquetReader(self, self.ranges(index, parallelism))

    @override
    def redealt(self, positions: Sequence[JsonValue], parallelism: int) -> list[JsonValue]:
        return redealt(self.reader, positions, parallelism, None)


def open_parquet(path: str) -> pq.ParquetFile:
    """The file at a local path or URI, to be read page by page."""
    filesystem, inner = filesystem_of(path)
    return parquet_file(filesystem.open_input_file(inner))


def parquet_file(opened: Any) -> pq.ParquetFile:
    """The Parquet file in an opened file, to be read page by page."""
    return pq.ParquetFile(
        opened,
        buffer_size=_BUFFER_BYTES,
        pre_buffer=False,
        coerce_int96_timestamp_unit="us",  # as Spark may write timestamps: nanoseconds end in the year 2262
    )


def _by_numbers(name: str) -> list[str | int]:
    """A key for the order of partitions: Spark's numbers outgrow their leading zeros."""
    return [int(part) if at % 2 else part for at, part in enumerate(re.split(r"(\d+)", name))]


class _ParquetReader(SplitReader[RowRange]):
    def __init__(self, source: StagedParquet, ranges: Sequence[RowRange]) -> None:
        super().__init__(source.name, source.schema, ranges, source.repeat)
        self._schema = source.schema
        self._strict = source.errors == "strict"
        self._files = source.files
        self._groups = source.groups or ()

    @override
    def split_of(self, extent: Extent) -> RowRange:
        file, group = extent.place
        return RowRange(self._files[file], group, self._groups[file][group], extent.start, extent.end)

    @override
    def extent_of(self, split: RowRange) -> Extent:
        return Extent((self._files.index(split.file), split.row_group), split.start, split.end)

    @override
    def blocks(self, split: RowRange, cursor: int | None) -> Iterator[Block]:
        return blocks_of(split, split.start if cursor is None else cursor, self._schema, self._strict)


def row_ranges(files: Sequence[str], groups: Sequence[Sequence[int]], begin: int, end: int) -> list[RowRange]:
    """The rows ``begin`` to ``end`` - 1 of all, by row groups. ``groups``: for each file the rows of its row groups."""
    ranges: list[RowRange] = []
    first = 0
    for path, sizes in zip(files, groups, strict=True):
        for number, rows in enumerate(sizes):
            low, high = max(begin - first, 0), min(end - first, rows)
            if low < high:
                ranges.append(RowRange(path, number, rows, low, high))
            first += rows
    return ranges


def blocks_of(split: RowRange, first: int, schema: pa.Schema, strict: bool) -> Iterator[Block]:
    """The rows of a range from row ``first`` of its row group on. Raises ``InputError``."""
    if not split.start <= first <= split.end:
        raise InputError(f"position {first} does not lie in rows {split.start} to {split.end} of {split.file!r}")
    try:
        with open_parquet(split.file) as file:
            if split.row_group >= file.num_row_groups:
                raise InputError(f"{split.file!r} has changed: row group {split.row_group} is no longer there")
            if file.metadata.row_group(split.row_group).num_rows != split.group_rows:
                raise InputError(f"{split.file!r} has changed: row group {split.row_group} has other rows than before")
            yield from _rows(file, split, first, schema, strict)
    except _READ_ERRORS as error:
        raise InputError(f"cannot read {split.file!r}: {error}") from error


def _rows(file: pq.ParquetFile, split: RowRange, first: int, schema: pa.Schema, strict: bool) -> Iterator[Block]:
    at = 0
    for batch in file.iter_batches(BATCH_ROWS, row_groups=[split.row_group], columns=schema.names, use_threads=False):
        low, high = max(first - at, 0), min(split.end - at, batch.num_rows)
        if low < high:
            rows, invalid = conformed_columns(batch, schema, strict, f"{split.file!r}", at, split.row_group)
            invalid = None if invalid is None else invalid[low:high]
            yield Block(rows.slice(low, high - low), np.arange(at + low + 1, at + high + 1), invalid)
        at += batch.num_rows
        if at >= split.end:
            return


def conformed_columns(
    batch: pa.RecordBatch, schema: pa.Schema, strict: bool, place: str, first: int, group: int | None = None
) -> tuple[pa.RecordBatch, np.ndarray | None]:
    """The columns of ``schema`` of rows that were read, and which rows held text that was not UTF-8 (``None``: none).

    ``strict``: such text is an ``InputError``; otherwise it is replaced. ``place``: the file, ``first``: the number of
    the first row, and ``group``: of the row group that it is counted in, for errors.
    """
    invalid: np.ndarray | None = None
    columns = []
    for field in schema:
        array = batch.column(field.name)
        bad = invalid_rows(array)
        if bad is not None:
            if strict:
                within = "" if group is None else f" of row group {group}"
                where = f"row {first + int(bad.argmax())}{within}, column {field.name!r}"
                raise InputError(f"{place} holds text that is not UTF-8: {where}")
            array = repaired(array)
            invalid = bad if invalid is None else invalid | bad
        columns.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema), invalid
