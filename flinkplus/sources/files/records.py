"""Files as blocks of records: what was read, and where reading continues after each record.

A *record* is a line, a JSON object, or a row. Each makes one row at most: empty lines and broken records make none.

Rules: the same file gives the same records, wherever its blocks begin. Memory is bounded by the size of a chunk, or by
the longest record, which must be shorter than 1 GB.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkplus.errors import InputError
from flinkplus.sources.files.directory import InputDirectory
from flinkplus.sources.files.position import OpenFile
from flinkplus.sources.files.seen import SeenFile

CHUNK_BYTES = 1 << 20
MAX_RECORD_BYTES = 1 << 30
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NEWLINE = ord("\n")
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class FileBlock:
    """Some records of a file.

    ``rows``: of those that make one. ``cursors``: for each record, where the next one begins.
    ``kept``: which records make a row (``None``: all). ``broken``: which ones are broken (``None``: none).
    ``repaired``: which records hold text that was not UTF-8 and is replaced (``None``: none).
    """

    rows: pa.RecordBatch
    cursors: npt.NDArray[np.int64]
    kept: npt.NDArray[np.bool_] | None = None
    broken: npt.NDArray[np.bool_] | None = None
    repaired: npt.NDArray[np.bool_] | None = None

    @property
    def records(self) -> int:
        return len(self.cursors)

    def between(self, start: int, stop: int) -> tuple[pa.RecordBatch, int, int]:
        """Of the records ``start`` to ``stop`` - 1: the rows, and how many are broken and how many repaired."""
        if self.kept is None:
            rows = self.rows.slice(start, stop - start)
        else:
            before = int(self.kept[:start].sum())
            rows = self.rows.slice(before, int(self.kept[start:stop].sum()))
        return rows, _count(self.broken, start, stop), _count(self.repaired, start, stop)


def _count(which: npt.NDArray[np.bool_] | None, start: int, stop: int) -> int:
    return 0 if which is None else int(which[start:stop].sum())


class FileFormat(ABC):
    """How the files of a source are read; picklable. ``schema``: of its rows."""

    schema: pa.Schema

    @abstractmethod
    def blocks(self, directory: InputDirectory, at: OpenFile[SeenFile]) -> Iterator[FileBlock]:
        """The blocks of a file from a place in it on.

        Raises ``InputError`` for content that does not fit, ``FileNotFoundError``, ``OSError``, ``pa.ArrowException``.
        """


@dataclass(frozen=True, slots=True)
class Records:
    """Bytes that are whole records of a file, which ends after them or has more.

    ``starts``, ``ends``: where the content of each begins and ends in ``data``, without the end of its line.
    ``cursors``: see ``FileBlock``. ``first``: the number of the first one. ``path``: of the file, for errors.
    """

    data: bytes
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    cursors: npt.NDArray[np.int64]
    first: int
    path: str

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        return self.data[self.starts[index] : self.ends[index]]

    def between(self, start: int, stop: int) -> bytes:
        """The bytes of some of the records, with the ends of their lines."""
        return self.data[self.starts[start] : self.starts[stop] if stop < len(self) else len(self.data)]

    def blank(self) -> npt.NDArray[np.bool_]:
        """Which records have nothing but white space."""
        blank = self.ends <= self.starts
        lengths = self.ends - self.starts
        first = np.frombuffer(self.data, np.uint8)[np.minimum(self.starts, len(self.data) - 1)]
        for index in np.flatnonzero((lengths > 0) & ((first == 32) | (first == 9) | (first == 13))).tolist():
            blank[index] = not self[index].strip(b" \t\r")
        return blank


def records_of(
    directory: InputDirectory, at: OpenFile[SeenFile], chunk_bytes: int = CHUNK_BYTES, quote: int | None = None
) -> Iterator[Records]:
    """The records of a file from a place in it on, where a record is a line.

    ``quote``: the byte between two of which an end of line belongs to the record; ``None``: there is none.
    """
    path, offset, first = directory.full_path(at.file.path), at.cursor, at.record
    with directory.stream(at.file, offset) as stream:
        for data, breaks in _whole_records(stream.read, path, offset, chunk_bytes, quote):
            found = _records(data, breaks, offset, first, path)
            offset += len(data)
            if len(found):
                yield found
                first += len(found)


def _whole_records(
    read: Callable[[int], bytes], path: str, offset: int, chunk_bytes: int, quote: int | None
) -> Iterator[tuple[bytes, npt.NDArray[np.int64]]]:
    """Pieces of whole records, each with the places of the newlines that end them. The last may lack its newline."""
    left, wanted = b"", chunk_bytes
    while True:
        more = read(wanted)
        data = left + more
        breaks = _breaks(data, quote)
        if not more:
            if data:
                yield data, breaks
            return
        if not len(breaks):
            if len(data) >= MAX_RECORD_BYTES:
                raise InputError(f"{path!r} has a record of 1 GB or more at byte {offset}")
            left, wanted = data, len(data)  # doubles, so that a long record is not copied often
            continue
        end = int(breaks[-1]) + 1
        yield data[:end], breaks
        offset += end
        left, wanted = data[end:], chunk_bytes


def _breaks(data: bytes, quote: int | None) -> npt.NDArray[np.int64]:
    """The places of the newlines that end a record."""
    array = np.frombuffer(data, np.uint8)
    breaks = np.flatnonzero(array == _NEWLINE)
    if quote is not None and len(breaks):
        quotes = np.flatnonzero(array == quote)
        breaks = breaks[np.searchsorted(quotes, breaks) % 2 == 0]
    return breaks


def _records(data: bytes, breaks: npt.NDArray[np.int64], offset: int, first: int, path: str) -> Records:
    ends = (
        breaks if data.endswith(b"\n") and len(breaks) and breaks[-1] == len(data) - 1 else np.append(breaks, len(data))
    )
    starts = np.concatenate([[0], ends[:-1] + 1])
    cursors = offset + ends + 1
    cursors[-1] = offset + len(data)
    array = np.frombuffer(data, np.uint8)
    ends = ends - ((ends > starts) & (array[ends - 1] == ord("\r")))
    if offset == 0 and data.startswith(_BYTE_ORDER_MARK):
        starts[0] = len(_BYTE_ORDER_MARK)
        ends[0] = max(ends[0], starts[0])
        if len(starts) == 1 and len(data) == len(_BYTE_ORDER_MARK):  # a file with nothing else
            starts, ends, cursors = starts[:0], ends[:0], cursors[:0]
    return Records(data, starts, ends, cursors, first, path)


class BrokenRecords(Exception):
    """Records that cannot be parsed; the message says why."""


def parse_each(
    records: Records,
    blank: npt.NDArray[np.bool_],
    parse: Callable[[int, int], pa.RecordBatch],
    schema: pa.Schema,
    skip: bool,
) -> FileBlock:
    """Parse records together; when that fails, halves of them, until each broken record is found.

    ``parse``: gives the rows of the records from the first number to the one before the second, one for each record
    that is not blank; raises ``BrokenRecords``.
    ``skip``: pass over broken records; otherwise the first one is an ``InputError``.
    """
    broken = np.zeros(len(records), np.bool_)
    parts: list[pa.RecordBatch] = []
    left = [(0, len(records))]
    while left:
        start, stop = left.pop()
        if blank[start:stop].all():
            continue
        try:
            parts.append(parse(start, stop))
        except BrokenRecords as error:
            if stop - start > 1:
                middle = (start + stop) // 2
                left += [(middle, stop), (start, middle)]
                continue
            if not skip:
                raise broken_record(records, start, error) from error
            broken[start] = True
    kept = ~(blank | broken)
    rows = pa.Table.from_batches(parts, schema).combine_chunks().to_batches()
    batch = rows[0] if rows else pa.RecordBatch.from_pylist([], schema=schema)
    any_broken = broken if broken.any() else None
    return FileBlock(batch, records.cursors, None if kept.all() else kept, any_broken)


def broken_record(records: Records, index: int, error: Exception) -> InputError:
    content = records[index][:_SHOWN].decode("utf-8", "replace")
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError(
        f"{records.path!r}, row {records.first + index + 1}: {reason}; it is {content!r} (on_error='skip' passes over "
        "such rows)"
    )


def conformed(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """Parsed rows as one batch of ``schema``. Raises ``BrokenRecords``."""
    columns = []
    for field in schema:
        column = table.column(field.name)
        try:
            column = column if column.type == field.type else column.cast(field.type)
        except (pa.ArrowException, ValueError) as error:
            raise BrokenRecords(f"column {field.name!r}: {error}") from error
        if column.null_count and not field.nullable:
            raise BrokenRecords(f"null in the column {field.name!r}, which is NOT NULL")
        columns.append(column.combine_chunks())
    return pa.RecordBatch.from_arrays(columns, schema=schema)
