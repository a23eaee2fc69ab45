"""Rows made by a function of their number: for load tests, demos, and inputs that are computed.

Rules:

- Row *i* depends on *i* alone: the function must have no memory and no randomness of its own.
- The numbers are dealt in blocks of ``block_rows`` (``dealing``): at the start, block *b* belongs to subtask
  ``b % parallelism``. A function of one row has blocks of one row by default; a function of a range is called once for
  blocks that follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.operators.base.columns import merge, plain
from flinkplus.operators.base.operator import JsonValue
from flinkplus.operators.base.row import USER_EXCEPTIONS, RowConverter, user_error
from flinkplus.operators.base.schema import parse_schema
from flinkplus.operators.base.values import check_zones
from flinkplus.sources.base import Source, SourceReader
from flinkplus.sources.dealing import BlockRun, deal_blocks

POSITION_FORMAT = 2
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
    def settings(self) -> Mapping[str, JsonValue]:
        return {"count": self.count, "batches": self.batches, "block_rows": self.block_rows}

    @override
    def reader(self, index: int, parallelism: int) -> SourceReader:
        return _GeneratorReader(self, index, parallelism)

    @override
    def redealt(self, positions: Sequence[JsonValue], parallelism: int) -> list[JsonValue]:
        left = []
        rows = [0] * parallelism
        for index, position in enumerate(positions):
            made, runs = self.opened(position, index, len(positions))
            rows[index % parallelism] += made
            left.append(runs)
        return [position_of(made, runs) for made, runs in zip(rows, deal_blocks(left, parallelism), strict=True)]

    def opened(self, position: JsonValue, index: int, parallelism: int) -> tuple[int, list[BlockRun]]:
        """How many rows a reader has made, and what it has left. Raises ``InputError`` for what is not a position."""
        if position is None:
            return 0, [BlockRun(index, parallelism)]
        try:
            assert isinstance(position, Mapping) and position["format"] == POSITION_FORMAT
            rows, runs = position["rows"], [BlockRun(*run) for run in position["runs"]]  # type: ignore[misc, union-attr]
            numbers = [rows, *(number for run in runs for number in (run.first, run.step, run.end or 1, run.offset))]
            assert all(type(number) is int and number >= 0 for number in numbers)
            assert all(run.step for run in runs)
        except (AssertionError, KeyError, TypeError) as error:
            raise InputError(f"source {self.name!r}: not a position of this version: {position!r:.200}") from error
        return cast(int, rows), runs


def position_of(rows: int, runs: Sequence[BlockRun]) -> JsonValue:
    """Where a reader that has made ``rows`` rows reads on, with ``runs`` left."""
    return {
        "format": POSITION_FORMAT,
        "rows": rows,
        "runs": [[run.first, run.step, run.end, run.offset] for run in runs],
    }


def _contiguous(numbers: range) -> Sequence[range]:
    return [numbers] if numbers.step == 1 else [range(number, number + 1) for number in numbers]


class _GeneratorReader(SourceReader):
    def __init__(self, source: Generator, index: int, parallelism: int) -> None:
        super().__init__()
        self._source = source
        self._index = index
        self._parallelism = parallelism
        self._block_rows = source.block_rows or (BATCH_BLOCK_ROWS if source.batches else 1)
        self._schema = parse_schema(source.schema)
        self._converter = RowConverter(source.name, f"{source.name}[{index}]", self._schema)
        self._runs = [BlockRun(index, parallelism)]

    @override
    def open(self, position: JsonValue) -> None:
        self.metrics["rows"], self._runs = self._source.opened(position, self._index, self._parallelism)

    @override
    def position(self) -> JsonValue:
        return position_of(self.metrics["rows"], self._runs)

    @override
    def read(self, max_rows: int) -> pa.RecordBatch | None:
        ranges, runs = self._next(max_rows)
        if not ranges:
            return None
        if self._source.batches:
            each = [part for numbers in ranges for part in _contiguous(numbers)]
            batch = merge([self._batch(numbers.start, len(numbers)) for numbers in each])
        else:
            batch = self._rows([number for numbers in ranges for number in numbers])
        self._runs = runs
        self.metrics["rows"] += batch.num_rows
        return batch

    def _next(self, max_rows: int) -> tuple[list[range], list[BlockRun]]:
        """The numbers of the next rows, a range for each block or for several that follow each other; and the runs that
        are left after them."""
        size, count = self._block_rows, self._source.count
        if size == 1 and len(self._runs) == 1:
            return self._next_single(max_rows, self._runs[0])
        found: list[range] = []
        runs, made = list(self._runs), 0
        while made < max_rows and runs:
            at = 0 if len(runs) == 1 else min(range(len(runs)), key=lambda number: runs[number].first)
            run = runs[at]
            first = run.first * size + run.offset
            numbers = range(first, first + min(size - run.offset, max_rows - made))
            if count is not None and numbers.stop > count:
                numbers = range(first, max(first, count))
                if not numbers:  # all other runs are further on
                    break
            if found and found[-1].stop == first:
                found[-1] = range(found[-1].start, numbers.stop)
            else:
                found.append(numbers)
            made += len(numbers)
            rest = run.after(len(numbers), size)
            runs[at : at + 1] = [] if rest is None else [rest]
        return found, runs

    def _next_single(self, max_rows: int, run: BlockRun) -> tuple[list[range], list[BlockRun]]:
        """As ``_next``, of one run of single rows."""
        ends = [end for end in (run.end, self._source.count) if end is not None]
        numbers = range(run.first, min([run.first + max_rows * run.step, *ends]), run.step)
        if not numbers:
            return [], []
        rest = replace(run, first=numbers[-1] + run.step)
        return [numbers], [] if run.end is not None and rest.first >= run.end else [rest]

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
