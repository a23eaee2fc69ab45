"""Operators on the rows of a stream, without state: the methods of ``Stream`` that look at one row or batch at a time.

Rules: functions on rows are slower than expressions, ``map_batches`` and the built-in operators, which work on Arrow
record batches. ``on_error`` says what a row does on which an operator fails: ``fail`` the job; ``skip`` it, counted in
the metric ``skipped_rows``; ``dead-letter``: it goes to ``dead_letters()`` of the result, as it came, with the columns
``operator`` and ``error``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from flinkplus.api.callers import names_callers_line
from flinkplus.api.streams.outputs import StreamOutputs
from flinkplus.errors import ConfigurationError
from flinkplus.near import did_you_mean
from flinkplus.operators.base.durations import Duration, duration_ms
from flinkplus.operators.calls.caller import CallSettings
from flinkplus.operators.calls.map_async import MapAsync
from flinkplus.operators.expressions.column import ColumnExpression, expression
from flinkplus.operators.expressions.tree import Alias, Name, Part
from flinkplus.operators.rows.expressions import Select, Where
from flinkplus.operators.rows.rejects import DEAD_LETTERS, LATE_ROWS, OnError
from flinkplus.operators.rows.rows import Filter, FlatMap, Map, MapBatches
from flinkplus.operators.rows.tokenize import Tokenize

if TYPE_CHECKING:
    from flinkplus.api.streams.stream import Stream

Schema: TypeAlias = "str | pa.Schema"
Expression: TypeAlias = "str | ColumnExpression"


@names_callers_line
class StreamRows(StreamOutputs):
    """The operators on single rows of a stream."""

    def side_output(self, name: str) -> Stream:
        """A stream that the operator before gives beside this one."""
        raise NotImplementedError

    def select(self, *columns: Expression, on_error: OnError = "fail", name: str | None = None) -> Stream:
        """The columns given: SQL text (``"price * 0.9 AS net"``, ``"*"``) or columns of ``flinkplus.functions``.

        Functions, types and what happens to nulls and on overflow are Spark's, in ANSI mode; ``docs/operators.md`` has
        the differences. Raises ``ConfigurationError`` for text that is not understood, an unknown column or function,
        and types that do not fit.
        """
        return _selected(self, "select", name, tuple(map(expression, columns)), on_error)

    def with_column(
        self, column: str, value: Expression, *, on_error: OnError = "fail", name: str | None = None
    ) -> Stream:
        """All columns, and ``column`` with a value, in its place if it is there, otherwise as the last one."""
        return _selected(self, "with_column", name, _extended(self.schema, {column: value}), on_error)

    def with_columns(
        self, columns: Mapping[str, Expression], *, on_error: OnError = "fail", name: str | None = None
    ) -> Stream:
        """As ``with_column``, for several (``{"net": "price * 0.9"}``), all computed from the columns before."""
        return _selected(self, "with_columns", name, _extended(self.schema, columns), on_error)

    def where(self, condition: Expression, *, on_error: OnError = "fail", name: str | None = None) -> Stream:
        """The rows for which a condition is true, in SQL (``"price > 100 AND channel = 'apple'"``) or as a column."""
        return self._then(Where(self._env.name_for("where", name), expression(condition), on_error))

    def drop(self, *columns: str, name: str | None = None) -> Stream:
        """All columns but these. Raises ``ConfigurationError`` for one that is not there."""
        _check_columns(self.schema, columns)
        kept = tuple(Name((column,)) for column in self.schema.names if column not in columns)
        return _selected(self, "drop", name, kept, "fail")

    def rename(self, columns: Mapping[str, str], *, name: str | None = None) -> Stream:
        """The columns under new names: ``{"old": "new"}``. Raises ``ConfigurationError`` for one that is not there."""
        _check_names("rename", columns, columns.values() if isinstance(columns, Mapping) else ())
        _check_columns(self.schema, columns)
        parts = tuple(Alias(Name((column,)), columns.get(column, column)) for column in self.schema.names)
        return _selected(self, "rename", name, parts, "fail")

    def map(
        self, function: Callable[[Any], Any], *, schema: Schema, on_error: OnError = "fail", name: str | None = None
    ) -> Stream:
        """One output row per input row; ``function(row)`` returns a row, tuple, dict, or the only column's value."""
        return self._then(Map(self._env.name_for("map", name), function, schema, on_error))

    def filter(self, function: Callable[[Any], bool], *, on_error: OnError = "fail", name: str | None = None) -> Stream:
        """The rows for which ``function(row)`` is true."""
        return self._then(Filter(self._env.name_for("filter", name), function, on_error))

    def flat_map(
        self,
        function: Callable[[Any], Iterable[Any]],
        *,
        schema: Schema,
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream:
        """Any number of output rows per input row: ``function(row)`` returns an iterable of rows."""
        return self._then(FlatMap(self._env.name_for("flat_map", name), function, schema, on_error))

    def map_batches(
        self,
        function: Callable[[pa.RecordBatch], Any],
        *,
        schema: Schema,
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream:
        """``function(batch)`` returns a record batch or an iterable of them, of ``schema``: the columnar path.

        ``on_error``: a batch for which the function raises is given to it again in halves, down to single rows.
        """
        return self._then(MapBatches(self._env.name_for("map_batches", name), function, schema, on_error))

    def map_async(
        self,
        function: Callable[[Any], Any],
        *,
        schema: Schema,
        timeout: Duration | None = "30 seconds",
        retries: int = 0,
        pause: Duration = "100 ms",
        in_order: bool = True,
        capacity: int = 100,
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream:
        """As ``map``, for a function that asks something outside (an HTTP service, a database) and waits for answers.

        ``function(row)``, plain or ``async def``, is called for several rows at a time. Answers are stored before
        they are sent on: a recovery repeats the answer, not the call. A call whose answer has not been sent on may be
        made again.

        ``timeout``: of one call (``None``: no limit). ``retries``: further calls after one that failed or took too
        long, the first after ``pause``, each of the others after twice as long as the one before.
        ``in_order``: rows are sent on in the order in which they came; otherwise as their answers come.
        ``capacity``: calls at a time in each subtask. With as many rows waiting it takes no more.
        ``on_error``: what a row does whose last call failed.
        """
        name = self._env.name_for("map_async", name)
        what = f"operator {name!r}: the"
        settings = CallSettings(
            None if timeout is None else duration_ms(timeout, f"{what} timeout", least=1) / 1000,
            retries,
            duration_ms(pause, f"{what} pause") / 1000,
            capacity,
        )
        operator = MapAsync(name, function, schema, settings, in_order, on_error)
        operator.check()
        return self._then(operator, "forward")

    def tokenize(self, column: str = "value", *, output: str = "word", name: str | None = None) -> Stream:
        """The words of a text column, one row each: ``line.lower().split()``, columnar."""
        return self._then(Tokenize(self._env.name_for("tokenize", name), column, output))

    def dead_letters(self) -> Stream:
        """The rows on which the operator before failed (``on_error="dead-letter"``), with the columns ``operator`` and
        ``error``."""
        return self.side_output(DEAD_LETTERS)

    def late_rows(self) -> Stream:
        """The rows that came too late for the windows before (``on_late="side-output"``), as they came."""
        return self.side_output(LATE_ROWS)


def _selected(stream: StreamRows, kind: str, name: str | None, parts: tuple[Part, ...], on_error: OnError) -> Stream:
    return stream._then(Select(stream._env.name_for(kind, name), parts, on_error))


def _check_columns(schema: pa.Schema, columns: Iterable[str]) -> None:
    for column in columns:
        if not isinstance(column, str):
            raise ConfigurationError(f"a column is known by its name, not by {column!r}")
        if column not in schema.names:
            near = did_you_mean(str(column), schema.names)
            raise ConfigurationError(f"no column {column!r} among {schema.names}{near}")


def _check_names(method: str, columns: object, names: Iterable[object]) -> None:
    if not isinstance(columns, Mapping):
        raise ConfigurationError(f"{method} takes a dict, not {type(columns).__name__}")
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"{method}: {name!r} cannot be the name of a column")


def _extended(schema: pa.Schema, columns: Mapping[str, Expression]) -> tuple[Part, ...]:
    """The columns of ``schema``, and others, which take the place of those with the same name."""
    _check_names("with_columns", columns, columns if isinstance(columns, Mapping) else ())
    found = {column: Alias(expression(value), column) for column, value in columns.items()}
    kept = [found.get(column, Name((column,))) for column in schema.names]
    return (*kept, *(part for column, part in found.items() if column not in schema.names))
