"""From records of several partitions, as they were fetched, to chunks of rows; what happens to a broken record. Pure.

- ``fail``: its chunk raises ``InputError`` when it is reached.
- ``skip``: it has no row.
- ``dead-letter``: it has a row, whose column ``flinkplus_broken`` says what was wrong; all others are null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.errors import InputError
from flinkplus.sources.kafka.buffers import Chunk
from flinkplus.sources.kafka.columns import BROKEN, BROKEN_SCHEMA, RECORD_COLUMNS, Record, record_arrays, timestamps_of
from flinkplus.sources.kafka.decoding import Decoded, Values
from flinkplus.sources.kafka.partitions import Partition

OnError = Literal["fail", "skip", "dead-letter"]
BROKEN_FIELD = pa.field(BROKEN, pa.struct(list(BROKEN_SCHEMA)))
RECORD_BYTES = 32
"""What a record takes here beside its row: its offset, its timestamp."""


class ChunkMaker:
    """``schema``: of the good rows, the columns of the values first, then ``metadata``."""

    def __init__(
        self,
        source: str,
        schema: pa.Schema,
        metadata: Sequence[str],
        on_error: OnError,
        decode: Callable[[Values], Decoded],
    ) -> None:
        self._source = source
        self._schema = schema
        self._metadata = metadata
        self._on_error = on_error
        self._decode = decode
        self._with_letters = with_dead_letters(schema)

    def __call__(self, groups: Mapping[Partition, Sequence[Record]]) -> list[tuple[Partition, Chunk]]:
        """The chunks of the records of each partition, which are in order."""
        ordered = [record for group in groups.values() for record in group]
        decoded = self._decode([record.value() for record in ordered])
        rows = self._rows(ordered, decoded)
        broken = {} if self._on_error == "dead-letter" else decoded.broken
        ends = _row_ends(len(ordered), broken)
        offsets = np.array([record.offset() for record in ordered], dtype=np.int64)
        whole = Chunk(rows, offsets, timestamps_of(ordered), 0, ends)
        found, begin = [], 0
        for partition, group in groups.items():
            end = begin + len(group)
            found += [(partition, chunk) for chunk in self._group(partition, whole, begin, end, broken)]
            begin = end
        return found

    def _rows(self, records: Sequence[Record], decoded: Decoded) -> pa.RecordBatch:
        """The rows of all records that have one."""
        columns = decoded.rows.columns
        if not decoded.broken:
            columns = [*columns, *record_arrays(records, self._metadata)]
            if self._on_error != "dead-letter":
                return pa.RecordBatch.from_arrays(columns, schema=self._schema)
            columns.append(pa.nulls(len(records), BROKEN_FIELD.type))
            return pa.RecordBatch.from_arrays(columns, schema=self._with_letters)
        good = [record for number, record in enumerate(records) if number not in decoded.broken]
        columns = [*columns, *record_arrays(good, self._metadata)]
        if self._on_error != "dead-letter":
            return pa.RecordBatch.from_arrays(columns, schema=self._schema)
        places = _places(len(records), decoded.broken)
        columns = [column.take(places) for column in columns]
        columns.append(_letters(records, decoded.broken).take(_places(len(records), decoded.broken, of_broken=True)))
        return pa.RecordBatch.from_arrays(columns, schema=self._with_letters)

    def _group(
        self, partition: Partition, whole: Chunk, begin: int, end: int, broken: Mapping[int, str]
    ) -> Iterator[Chunk]:
        """The chunks of one partition's records. After one that fails nothing can be read."""
        first = min((n for n in broken if begin <= n < end), default=end) if self._on_error == "fail" else end
        if first > begin:
            yield _part(whole, begin, first)
        if first < end:
            failure = InputError(
                f"source {self._source!r}: the record of topic {partition.topic!r}, partition {partition.number}, at "
                f"offset {whole.offsets[first]} cannot be decoded: {broken[first]} (on_error='skip' leaves such "
                "records out, 'dead-letter' hands them to a stream of their own)"
            )
            part = _part(whole, first, first + 1)
            yield Chunk(part.rows, part.offsets, part.timestamps, part.size_bytes, part.ends, failure)


def _part(whole: Chunk, begin: int, end: int) -> Chunk:
    """The records ``begin`` to ``end``."""
    first, last = whole.rows_before(begin), whole.rows_before(end)
    rows = whole.rows.slice(first, last - first)
    ends = None if last - first == end - begin or whole.ends is None else whole.ends[begin:end] - first
    size = rows.nbytes + (end - begin) * RECORD_BYTES
    return Chunk(rows, whole.offsets[begin:end], whole.timestamps[begin:end], size, ends)


def _row_ends(count: int, without_row: Mapping[int, str]) -> npt.NDArray[np.int64] | None:
    if not without_row:
        return None
    rows = np.ones(count, dtype=np.int64)
    rows[list(without_row)] = 0
    return np.cumsum(rows)


def _places(count: int, broken: Mapping[int, str], of_broken: bool = False) -> pa.Array:
    """For each record its place among the good ones, or null; or the reverse."""
    places: list[int | None] = []
    counts = [0, 0]
    for number in range(count):
        is_wanted = (number in broken) is of_broken
        places.append(counts[is_wanted] if is_wanted else None)
        counts[is_wanted] += 1
    return pa.array(places, pa.int64())


def _letters(records: Sequence[Record], broken: Mapping[int, str]) -> pa.StructArray:
    numbers = sorted(broken)
    chosen = [records[number] for number in numbers]
    arrays = [
        pa.array([record.value() for record in chosen], pa.binary()),
        pa.array([broken[number] for number in numbers], pa.string()),
        *record_arrays(chosen, RECORD_COLUMNS.names),
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(BROKEN_SCHEMA))


def with_dead_letters(schema: pa.Schema) -> pa.Schema:
    """The columns of a source with ``on_error='dead-letter'``, whose good rows have ``schema``."""
    return pa.schema([*(pa.field(field.name, field.type) for field in schema), BROKEN_FIELD])


class GoodRows:
    """For ``map_batches``: of a source with dead letters, the rows of ``schema``."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def __call__(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        letters = batch.column(batch.num_columns - 1)
        if letters.null_count < len(letters):
            batch = batch.filter(letters.is_null())
        if not batch.num_rows:
            return []
        return [pa.RecordBatch.from_arrays(batch.columns[:-1], schema=self._schema)]


def broken_rows(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """For ``map_batches``: of a source with dead letters, the broken records."""
    letters = batch.column(batch.num_columns - 1)
    if letters.null_count == len(letters):
        return []
    found = pc.drop_null(letters)
    return [pa.RecordBatch.from_arrays(found.flatten(), schema=BROKEN_SCHEMA)]
