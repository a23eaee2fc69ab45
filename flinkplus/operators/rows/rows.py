"""Users' functions: of one row (``Map``, ``Filter``, ``FlatMap``) or one Arrow batch (``MapBatches``).

Rules:

- For row functions a batch is decoded to rows, and the results become batches again. Where speed matters, use
  ``MapBatches`` or a built-in operator.
- A function must depend on its input alone: it is called again for the same rows when a job recovers.
- A function that raises, or returns what its schema does not allow, is a ``UserFunctionError``, or, with ``on_error``,
  its row is rejected (``rejects``).
- What ``FlatMap`` gives is taken from the function's iterator as needed, so one row may give any number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.columns import cut, plain
from flinkplus.operators.base.operator import Operator, OperatorContext, OperatorInstance
from flinkplus.operators.base.row import USER_EXCEPTIONS, Row, RowConverter, Verbatim, rows_of, user_error
from flinkplus.operators.base.schema import parse_schema
from flinkplus.operators.base.values import check_zones
from flinkplus.operators.rows.rejects import OnError, dead_letter_outputs, rejecting

MAX_COLLECTED_ROWS = 16_384
"""Rows that row functions give before they are made into a batch."""


@dataclass(frozen=True)
class _FunctionOperator(Operator):
    """A function that makes rows of ``schema``, which is text as users write it, or a ``pa.Schema``."""

    name: str
    fn: Callable[..., Any]
    schema: str | pa.Schema
    on_error: OnError = "fail"

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return parse_schema(self.schema)

    @override
    def side_outputs(self, schema: pa.Schema) -> Mapping[str, pa.Schema]:
        return dead_letter_outputs(self.name, schema, self.on_error)


class Map(_FunctionOperator):
    """``fn(row)`` gives one row of ``schema``."""

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return rejecting(_MapInstance(self, ctx), ctx, self.on_error)


class _MapInstance(OperatorInstance):
    def __init__(self, descriptor: Map, ctx: OperatorContext) -> None:
        self._fn = descriptor.fn
        self._ctx = ctx
        self._converter = RowConverter(ctx.operator, ctx.subtask, parse_schema(descriptor.schema))

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        rows = rows_of(batch, self._ctx)
        if rows:
            results = call_for_each(self._fn, rows, self._ctx)
            yield from cut(self._converter.batch(results, rows.__getitem__))


def call_for_each(fn: Callable[[Row], Any], rows: list[Row], ctx: OperatorContext) -> list[Any]:
    """``[fn(row) for row in rows]``, with the row in the error when it raises."""
    results: list[Any] = []
    try:
        for row in ctx.noted(rows):
            results.append(fn(row))  # its length says which row raised
    except USER_EXCEPTIONS as error:
        raise user_error(ctx.operator, ctx.subtask, rows[len(results)], error) from error
    return results


@dataclass(frozen=True)
class Filter(Operator):
    """Keeps the rows for which ``fn(row)`` is true; they stay as they are."""

    name: str
    fn: Callable[[Row], Any]
    on_error: OnError = "fail"

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    @override
    def side_outputs(self, schema: pa.Schema) -> Mapping[str, pa.Schema]:
        return dead_letter_outputs(self.name, schema, self.on_error)

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return rejecting(_FilterInstance(self.fn, ctx), ctx, self.on_error)


class _FilterInstance(OperatorInstance):
    def __init__(self, fn: Callable[[Row], Any], ctx: OperatorContext) -> None:
        self._fn = fn
        self._ctx = ctx

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        rows = rows_of(batch, self._ctx)
        keep = call_for_each(lambda row: bool(self._fn(row)), rows, self._ctx)
        if all(keep):
            return cut(batch)
        return cut(batch.filter(pa.array(keep, pa.bool_())))


class FlatMap(_FunctionOperator):
    """``fn(row)`` gives an iterable of rows of ``schema``: none, one or many."""

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return rejecting(_FlatMapInstance(self, ctx), ctx, self.on_error)


class _FlatMapInstance(OperatorInstance):
    def __init__(self, descriptor: FlatMap, ctx: OperatorContext) -> None:
        self._fn = descriptor.fn
        self._ctx = ctx
        self._collector = Collector(ctx, parse_schema(descriptor.schema))

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        fn, collector = self._fn, self._collector
        collector.clear()
        for row in self._ctx.noted(rows_of(batch, self._ctx)):
            try:
                result = fn(row)
            except USER_EXCEPTIONS as error:
                raise user_error(self._ctx.operator, self._ctx.subtask, row, error) from error
            yield from collector.collect(row, result)
        yield from collector.flush()


class Collector:
    """Gathers the rows of ``schema`` that a function gives for each input row, as batches of bounded size."""

    def __init__(self, ctx: OperatorContext, schema: pa.Schema) -> None:
        self._ctx = ctx
        self._converter = RowConverter(ctx.operator, ctx.subtask, schema)
        self._results: list[Any] = []
        self._origins: list[object] = []

    def clear(self) -> None:
        """Forget what a batch that failed has left."""
        self._results, self._origins = [], []

    def collect(self, row: object, result: Any) -> Iterable[pa.RecordBatch]:
        """Take all that ``result``, returned for the input row ``row``, gives."""
        if isinstance(result, (list, tuple)) and not hasattr(result, "__columns__"):
            if len(self._results) + len(result) < MAX_COLLECTED_ROWS:
                self._results += result
                self._origins += [row] * len(result)
                return ()
        elif isinstance(result, (str, bytes, dict, tuple)) or not isinstance(result, Iterable):
            cause = f"returned {type(result).__name__}, not an iterable of rows; for a single row return a list of one"
            raise user_error(self._ctx.operator, self._ctx.subtask, row, cause)
        return self._gather(row, iter(result))

    def _gather(self, row: object, results: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                self._results += islice(results, MAX_COLLECTED_ROWS - len(self._results))
            except ConfigurationError:  # of the program, not of the row
                raise
            except USER_EXCEPTIONS as error:
                raise user_error(self._ctx.operator, self._ctx.subtask, row, error) from error
            self._origins += [row] * (len(self._results) - len(self._origins))
            if len(self._results) < MAX_COLLECTED_ROWS:
                return
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """What has been gathered, as at most one batch."""
        results, origins = self._results, self._origins
        self._results, self._origins = [], []
        if results:
            yield self._converter.batch(results, origins.__getitem__)


class MapBatches(_FunctionOperator):
    """``fn(batch)`` gives a record batch or table of ``schema``, or an iterable of them.

    The function gets plain columns (no dictionaries). Columns of what it returns are matched by name; they are cast
    to the schema's types where that loses nothing. Timestamps with a zone and without are not cast to each other.
    """

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return rejecting(_MapBatchesInstance(self, ctx), ctx, self.on_error)


class _MapBatchesInstance(OperatorInstance):
    def __init__(self, descriptor: MapBatches, ctx: OperatorContext) -> None:
        self._fn = descriptor.fn
        self._ctx = ctx
        self._schema = parse_schema(descriptor.schema)

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        shown = plain(batch, self._ctx.input_schema)
        if self._ctx.note_row is not None:
            self._ctx.note_row(Verbatim(_shown(shown)))
        results = self._results(shown)
        while True:
            try:
                result = next(results, None)
                if result is None:
                    return
                selected = result.select(self._schema.names)
                check_zones(selected, self._schema)
                fitted = plain(selected, self._schema).replace_schema_metadata(self._schema.metadata)
                fitted.validate()
            except USER_EXCEPTIONS as error:
                raise user_error(self._ctx.operator, self._ctx.subtask, Verbatim(_shown(shown)), error) from error
            yield from cut(fitted)

    def _results(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        result = self._fn(batch)
        for part in [result] if isinstance(result, (pa.RecordBatch, pa.Table)) else result:
            if isinstance(part, pa.Table):
                yield from part.to_batches()
            elif isinstance(part, pa.RecordBatch):
                yield part
            else:
                raise TypeError(f"returned {type(part).__name__}, not a pyarrow.RecordBatch")


def _shown(batch: pa.RecordBatch) -> str:
    return f"a batch of {batch.num_rows} rows that begins with {batch.slice(0, 1).to_pylist()[0]!r}"
