"""From what the iterators of a data source give to record batches.

Rules: as in PySpark, an iterator gives tuples, lists or ``Row`` (by name), or Arrow batches. Values must fit the
schema's types: nothing is converted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pyarrow as pa

from flinkplus.errors import FlinkPlusError, InputError
from flinkplus.operators.base.columns import plain
from flinkplus.operators.base.row import (
    USER_EXCEPTIONS,
    RowConverter,
    Verbatim,
    check_nulls_inside,
    described_cause,
    user_error,
)
from flinkplus.operators.base.values import check_zones

CHUNK_ROWS = 4096
CHUNK_S = 0.05


class SourceRows:
    """Makes record batches of ``schema``. ``shown``: the data source, for errors; ``hide``: takes out secrets."""

    def __init__(
        self, source: str, index: int, schema: pa.Schema, shown: str, hide: Callable[[str], str] = lambda text: text
    ) -> None:
        self._source, self._subtask = source, f"{source}[{index}]"
        self._schema, self._names = schema, set(schema.names)
        self._shown, self._hide = shown, hide
        self._converter = RowConverter(source, self._subtask, schema)

    def failed(self, method: str, error: BaseException) -> FlinkPlusError:
        """The error for an exception that a method of the data source raised."""
        if isinstance(error, FlinkPlusError):
            return error
        cause = self._hide(described_cause(error))
        return InputError(f"source {self._source!r}: {method} of {self._shown} raised {cause}")

    def batches(self, iterator: Any, method: str) -> Generator[pa.RecordBatch, None, None]:
        """The rows as record batches that are not empty, of ``CHUNK_ROWS`` rows at most if they are not Arrow batches.

        ``method``: that returned the iterator. Raises ``InputError``, or ``UserFunctionError`` for a row.
        """
        if not isinstance(iterator, Iterator):
            kind = type(iterator).__name__
            raise InputError(f"source {self._source!r}: {method} of {self._shown} must return an iterator, not {kind}")
        rows: list[Any] = []
        given, begun_s = 0, time.monotonic()
        for element in self._elements(iterator, method):
            is_batch = isinstance(element, pa.RecordBatch)
            if not is_batch:
                rows.append(element)
            if rows and (is_batch or len(rows) == CHUNK_ROWS or time.monotonic() - begun_s >= CHUNK_S):
                yield self._converted(rows, given)
                given, rows, begun_s = given + len(rows), [], time.monotonic()
            if is_batch and element.num_rows:
                yield self._arrow(element, given)
                given += element.num_rows
        if rows:
            yield self._converted(rows, given)

    def _elements(self, iterator: Iterator[Any], method: str) -> Iterator[Any]:
        try:
            yield from iterator
        except USER_EXCEPTIONS as error:
            raise self.failed(method, error) from error

    def _converted(self, rows: list[Any], given: int) -> pa.RecordBatch:
        def place(i: int) -> Verbatim:
            return Verbatim(f"{given + i} of a batch")

        for i, row in enumerate(rows):
            if not isinstance(row, tuple | list):
                cause = f"{self._shown} gave {type(row).__name__}, which is no tuple, list, Row or Arrow batch"
                raise user_error(self._source, self._subtask, place(i), cause)
            fields = getattr(row, "__fields__", None)
            if fields is not None and set(fields) != self._names:
                cause = f"{self._shown} gave a Row of {list(fields)} for the columns {self._schema.names}"
                raise user_error(self._source, self._subtask, place(i), cause)
        return self._converter.batch([tuple(row) if type(row) is list else row for row in rows], place)

    def _arrow(self, batch: pa.RecordBatch, given: int) -> pa.RecordBatch:
        try:
            if set(batch.schema.names) != self._names:
                raise TypeError(f"its columns are {batch.schema.names}, not {self._schema.names}")
            chosen = batch.select(self._schema.names)
            check_zones(chosen, self._schema)
            fitting = plain(chosen, self._schema)
            for field, column in zip(self._schema, fitting.columns, strict=True):
                if column.null_count and not field.nullable:
                    raise TypeError(f"null in column {field.name!r}, which is declared NOT NULL")
                check_nulls_inside(field.name, column)
            return fitting
        except USER_EXCEPTIONS as error:
            cause = f"{self._shown} gave an Arrow batch that does not fit: {error}"
            raise user_error(self._source, self._subtask, Verbatim(f"{given} of a batch"), cause) from error
