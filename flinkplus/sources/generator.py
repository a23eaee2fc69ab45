"""Rows made by a function of their number: for load tests, demos, and inputs that are computed.

Rules:

- Row *i* depends on *i* alone: the function must have no memory and no randomness of its own.
- The numbers are dealt in blocks of ``block_rows``: block *b* belongs to subtask ``b % parallelism``. A function of
  one row has blocks of one row by default; a function of a range is called once for blocks that follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.operators.base.columns import merge, plain
from flinkplus.operators.base.operator import JsonValue
from flinkplus.operators.base.row import USER_EXCEPTIONS, RowConverter, user_error
from flinkplus.operators.base.schema import parse_schema
from flinkplus.operators.base.values import check_zones
from flinkplus.sources.base import Source, SourceReader

POSITION_FORMAT = 1
BATCH_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class Generator(Source):
    """``fn(i)`` gives row ``i``; with ``batches=True``, ``fn(start, n)`` gives rows ``start`` to ``start + n`` as a
    record batch.

    ``schema``: of the rows; text is parsed at once. ``count``: how many rows there are in all, ``None`` for no end.
    """

    name: str
    fn: Callable[..., Any]
    schema: str | pa.Schema
    count: int | None = None
    batches: bool = False
    block_rows: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", parse_schema(self.schema))
        if self.count is not None and self.count < 0:
            raise ConfigurationError(f"source {self.name!r}: count must be 0 or more, or None; not {self.count}")
        if self.block_rows is not None and self.block_rows < 1:
            raise ConfigurationError(f"source {self.name!r}: block_rows must be at least 1, not {self.block_rows}")

    @override
    def reader(self, index: int, parallelism: int) -> SourceReader:
        return _GeneratorReader(self, index, parallelism)


class _GeneratorReader(SourceReader):
    """Its position is the number of rows it has made: row *k* of this subtask is in its block ``k // block_rows``."""

    def __init__(self, source: Generator, index: int, parallelism: int) -> None:
        super().__init__()
        self._source = source
        self._index = index
        self._parallelism = parallelism
        self._block_rows = source.block_rows or (BATCH_BLOCK_ROWS if source.batches else 1)
        self._schema = parse_schema(source.schema)
        self._converter = RowConverter(source.name, f"{source.name}[{index}]", self._schema)
        self._made = 0

    @override
    def open(self, position: JsonValue) -> None:
        if position is None:
            return
        made = position.get("next") if isinstance(position, Mapping) else None
        if not isinstance(position, Mapping) or position.get("format") != POSITION_FORMAT or not isinstance(made, int):
            raise InputError(f"source {self._source.name!r}: not a position of this version: {position!r:.200}")
        self._made = self.metrics["rows"] = made

    @override
    def position(self) -> JsonValue:
        return {"format": POSITION_FORMAT, "next": self._made}

    @override
    def read(self, max_rows: int) -> pa.RecordBatch | None:
        ranges = self._ranges(max_rows)
        if not ranges:
            return None
        if self._source.batches:
            batch = merge([self._batch(numbers.start, len(numbers)) for numbers in ranges])
        else:
            batch = self._rows([number for numbers in ranges for number in numbers])
        self._made += batch.num_rows
        self.metrics["rows"] = self._made
        return batch

    def _ranges(self, max_rows: int) -> list[range]:
        """The numbers of the next rows: a range for each block, or for several that follow each other."""
        size, count = self._block_rows, self._source.count
        found: list[range] = []
        made, end = self._made, self._made + max_rows
        while made < end:
            block, at = divmod(made, size)
            first = (block * self._parallelism + self._index) * size + at
            numbers = range(first, first + min(size - at, end - made))
            if count is not None and numbers.stop >= count:
                numbers, end = range(first, max(first, count)), made
            if found and found[-1].stop == first:
                found[-1] = range(found[-1].start, numbers.stop)
            elif numbers:
                found.append(numbers)
            made += len(numbers)
        return found

    def _rows(self, numbers: list[int]) -> pa.RecordBatch:
        rows: list[Any] = []
        try:
            for number in numbers:
                rows.append(self._source.fn(number))  # its length says which row raised
        except USER_EXCEPTIONS as error:
            raise self._error(numbers[len(rows)], error) from error
        return self._converter.batch(rows, numbers.__getitem__)

    def _batch(self, start: int, count: int) -> pa.RecordBatch:
        try:
            given = self._source.fn(start, count).select(self._schema.names)
            check_zones(given, self._schema)
            batch = plain(given, self._schema)
            if batch.num_rows != count:
                raise ValueError(f"returned {batch.num_rows} rows instead of {count}")
        except USER_EXCEPTIONS as error:
            raise self._error(range(start, start + count), error) from error
        return batch

    def _error(self, row: object, error: BaseException) -> Exception:
        return user_error(self._source.name, f"{self._source.name}[{self._index}]", row, error)
