"""Streams, with which the user draws the job.

Rules: a stream is a description; nothing runs before ``execute``. ``map_batches`` and the built-in operators work on
Arrow record batches; functions on rows are slower. Schemas are DDL strings (``"word string, n long"``) or
``pyarrow.Schema``. Methods raise ``ConfigurationError`` for invalid arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import pyarrow as pa

from flinkplus.api.callers import names_callers_line
from flinkplus.api.drawing import Drawing
from flinkplus.api.loops import close_loop
from flinkplus.api.outputs import StreamOutputs
from flinkplus.errors import ConfigurationError
from flinkplus.graph import Node
from flinkplus.operators.base.durations import Duration, duration_ms
from flinkplus.operators.base.keys import check_key_columns
from flinkplus.operators.base.operator import Operator
from flinkplus.operators.base.routes import Route
from flinkplus.operators.base.schema import columns_text, united
from flinkplus.operators.event_time.event_time import WithWatermark
from flinkplus.operators.event_time.interval_join import IntervalJoin, JoinSide
from flinkplus.operators.event_time.windows import TumblingWindow
from flinkplus.operators.keyed.aggregates import Aggregate
from flinkplus.operators.keyed.deduplicate import Deduplicate
from flinkplus.operators.keyed.keyed import Count, Sum
from flinkplus.operators.keyed.keyed_rows import Process, Reduce
from flinkplus.operators.keyed.top import Top
from flinkplus.operators.rows.loop import LoopHead
from flinkplus.operators.rows.rows import Filter, FlatMap, Map, MapBatches
from flinkplus.operators.rows.tokenize import Tokenize
from flinkplus.operators.rows.union import Union

Schema: TypeAlias = "str | pa.Schema"


@names_callers_line
class Stream(StreamOutputs):
    """A stream of rows with a schema."""

    def __init__(self, env: Drawing, node: int, schema: pa.Schema) -> None:
        self._env = env
        self._origins: tuple[int, ...] = (node,)
        self.schema = schema

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}: {columns_text(self.schema)}>"

    @property
    def name(self) -> str:
        """The name of the operator that produces this stream."""
        return self._env.graph.nodes[self._origins[0]].name

    def _node(self) -> int:
        return self._origins[0]

    def _then(self, operator: Operator) -> Stream:
        """The output of ``operator``, fused with the operator before it."""
        schema = operator.output_schema(self.schema)
        node = self._env.graph.add(Node(operator.name, "operator", operator, schema), self._node())
        return Stream(self._env, node, schema)

    def _exchanged(self, operator: Operator, keys: tuple[str, ...] = (), route: Route = "hash") -> Stream:
        """The output of ``operator``, which receives the rows by ``route``."""
        schema, graph = operator.output_schema(self.schema), self._env.graph
        node = graph.add(Node(operator.name, "operator", operator, schema))
        for origin in self._origins:
            graph.link(origin, node, keys, route)
        return Stream(self._env, node, schema)

    def map(self, function: Callable[[Any], Any], *, schema: Schema, name: str | None = None) -> Stream:
        """One output row per input row; ``function(row)`` returns a row, tuple, dict, or the only column's value."""
        return self._then(Map(self._env.name_for("map", name), function, schema))

    def filter(self, function: Callable[[Any], bool], *, name: str | None = None) -> Stream:
        """The rows for which ``function(row)`` is true."""
        return self._then(Filter(self._env.name_for("filter", name), function))

    def flat_map(self, function: Callable[[Any], Iterable[Any]], *, schema: Schema, name: str | None = None) -> Stream:
        """Any number of output rows per input row: ``function(row)`` returns an iterable of rows."""
        return self._then(FlatMap(self._env.name_for("flat_map", name), function, schema))

    def map_batches(
        self, function: Callable[[pa.RecordBatch], Any], *, schema: Schema, name: str | None = None
    ) -> Stream:
        """``function(batch)`` returns a record batch or an iterable of them, of ``schema``: the columnar path."""
        return self._then(MapBatches(self._env.name_for("map_batches", name), function, schema))

    def tokenize(self, column: str = "value", *, output: str = "word", name: str | None = None) -> Stream:
        """The words of a text column, one row each: ``line.lower().split()``, columnar."""
        return self._then(Tokenize(self._env.name_for("tokenize", name), column, output))

    def with_watermark(
        self,
        column: str,
        delay: Duration,
        *,
        every: Duration = "100 ms",
        idle_after: Duration | None = None,
        name: str | None = None,
    ) -> Stream:
        """Take the event time of rows from ``column``: a timestamp, or integer milliseconds. Rows pass unchanged.

        ``delay``: maximum delay of a row behind a later one (``"10 seconds"``, ``"500 ms"``, or seconds).
        ``every``: watermarks are multiples of this; it is the maximum delay that this adds to windows.
        ``idle_after``: event time continues without a subtask whose live source has had nothing to read for so long,
        until it has rows again, which may be late then (``"30 seconds"``; ``None``: it waits).

        A subtask's watermark follows the latest row that it has read. After an exchange the minimum over all subtasks
        counts, so that a subtask without rows holds back event time. Metric ``late_rows``: rows later than ``delay``.
        Raises ``ConfigurationError`` for ``idle_after`` behind an exchange.
        """
        name = self._env.name_for("with_watermark", name)
        delay_ms = duration_ms(delay, f"operator {name!r}: the delay")
        every_ms = duration_ms(every, f"operator {name!r}: every", least=1)
        idle_ms = None if idle_after is None else duration_ms(idle_after, f"operator {name!r}: idle_after", least=1)
        if idle_ms is not None and not self._is_fused_with_source:
            raise ConfigurationError(
                f"operator {name!r}: idle_after needs with_watermark before the first key_by or union, fused with its "
                "source"
            )
        return self._then(WithWatermark(name, column, delay_ms, every_ms, idle_ms))

    @property
    def _is_fused_with_source(self) -> bool:
        vertices = self._env.graph.fuse_draft()
        return len(self._origins) == 1 and any(v.is_source for v in vertices if self._origins[0] in v.nodes)

    def throttle(self, rows_per_s: float) -> Stream:
        """Pace the source so that at most ``rows_per_s``, over all subtasks, leave this operator.

        Raises ``ConfigurationError`` unless it is fused with its source (without ``key_by`` or ``union`` in between).
        """
        if isinstance(rows_per_s, bool) or not isinstance(rows_per_s, int | float) or not 0 < rows_per_s < 1e12:
            raise ConfigurationError(f"rows_per_s must be a positive number, not {rows_per_s!r}")
        self._env.throttle(self._origins, float(rows_per_s))
        return self

    def union(self, *others: Stream, name: str | None = None) -> Stream:
        """Merge this stream and ``others``, which must have the same columns, into one stream.

        Rows of one stream keep their order; rows of different streams arrive in any order. A stream that is given twice
        contributes its rows twice. A ``key_by`` directly after it sends each stream's rows to the subtask of their key.
        Otherwise subtask *i* of the union, called ``name``, takes the rows of the streams' subtasks *i*. Raises
        ``ConfigurationError`` for streams of other environments or with other columns.
        """
        for other in others:
            if not isinstance(other, Stream):
                raise ConfigurationError(f"union takes streams, not {type(other).__name__}; union first, then key_by")
            if other._env is not self._env:
                raise ConfigurationError(f"stream {other.name!r} is of another StreamEnvironment; draw both in one")
        streams = (self, *others)
        schema = united([stream.schema for stream in streams])
        origins = tuple(origin for stream in streams for origin in stream._origins)
        return _UnitedStream(self._env, origins, schema, self._env.name_for("union", name))

    def iterate(self, body: Callable[[Stream], tuple[Stream, Stream]], *, name: str | None = None) -> Stream:
        """A loop: ``body(rows)`` draws the operators for the rows of this stream and those fed back.

        ``body`` returns two streams made from ``rows``: ``(feedback, output)``. The rows of ``feedback``, which must
        have the columns of this stream, enter ``rows`` again; ``iterate`` returns ``output``::

            def halve(rows):
                halves = rows.map(lambda row: row.n // 2, schema="n long")
                return halves.filter(lambda row: row.n > 1), halves.filter(lambda row: row.n <= 1)

            ones = numbers.iterate(halve)

        ``key_by`` and state work in a loop as elsewhere. Rows that are fed back and rows from outside arrive in no
        particular order. When the input ends, the loop runs until it is empty, and then ends with the job. A loop whose
        rows never leave it must be cancelled. Event time ends at a loop: call ``with_watermark`` again after it. A job
        with loops must be exactly-once, with aligned checkpoints; loops cannot be nested. Raises
        ``ConfigurationError`` for a feedback with other columns, and for streams that are not made from ``rows``.
        """
        head = LoopHead(self._env.name_for("iterate", name))
        rows = self._exchanged(head, route="forward")
        return close_loop(self._env.graph, rows, body(rows))

    def deduplicate(self, *columns: str, ttl: Duration | None = None, name: str | None = None) -> Stream:
        """The first row for each value of ``columns``, for example the ID of an event that its producer may repeat.

        ``ttl``: time for which further rows are dropped after a kept one (``"10 minutes"``, or seconds). The first row
        at or after its end is kept, and restarts it. ``None``: for ever; the state then grows with every new value.

        The time is processing time, and logged, so that a failover changes nothing. Nulls are equal to each other.
        """
        ttl_ms = None if ttl is None else duration_ms(ttl, "deduplicate: ttl", least=1)
        return self.key_by(*columns)._then(Deduplicate(self._env.name_for("deduplicate", name), columns, ttl_ms))

    def key_by(self, *columns: str) -> KeyedStream:
        """Send rows with equal values in ``columns`` to the same subtask."""
        if not columns:
            raise ConfigurationError("a key needs at least one column; gather() sends all rows to one subtask")
        check_key_columns(self.schema, columns)
        return KeyedStream(self, columns)

    def gather(self) -> KeyedStream:
        """Send all rows to one subtask, as if they had the same key: ``gather().count()`` counts all rows.

        One subtask runs the next operator and all operators fused with it, so more slots do not make it faster.
        Rows of different subtasks arrive in any order; a failure does not change the order afterwards.
        """
        return KeyedStream(self, ())

    def total(self, column: str, *, output: str = "total", name: str | None = None) -> Stream:
        """Adds the running sum of ``column`` over all rows, in one subtask; see ``KeyedStream.sum`` and ``gather``."""
        return self.gather()._then(Sum(self._env.name_for("total", name), (), column, output))


class _UnitedStream(Stream):
    """The result of ``union``. Its operator is drawn once, when another operator is fused with it."""

    def __init__(self, env: Drawing, origins: tuple[int, ...], schema: pa.Schema, name: str) -> None:
        super().__init__(env, origins[0], schema)
        self._origins = origins
        self._name = name
        self._drawn: int | None = None

    @property
    def name(self) -> str:
        return self._name

    def _node(self) -> int:
        if len(self._origins) == 1:
            return self._origins[0]
        if self._drawn is None:
            self._drawn = self._exchanged(Union(self._name), route="forward")._node()
        return self._drawn


@names_callers_line
class KeyedStream:
    """A stream partitioned by key, whose operators keep state per key. Without ``keys`` one subtask gets all rows."""

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self._stream = stream
        self._env = stream._env
        self.schema = stream.schema
        self.keys = keys

    def __repr__(self) -> str:
        by = ", ".join(self.keys) or "all rows together"
        return f"<KeyedStream {self._stream.name!r} by {by}: {columns_text(self.schema)}>"

    def _then(self, operator: Operator) -> Stream:
        return self._stream._exchanged(operator, self.keys, "hash" if self.keys else "gather")

    def count(self, *, output: str = "count", name: str | None = None) -> Stream:
        """Adds the running count of the row's key, columnar."""
        return self._then(Count(self._env.name_for("count", name), self.keys, output))

    def sum(self, column: str, *, output: str = "sum", name: str | None = None) -> Stream:
        """Adds the running sum of ``column`` for the row's key, columnar; null while all values were null.

        Integers are summed as int64, floating point as float64, ``decimal(p, s)`` as ``decimal(p + 10, s)`` with a
        maximum of 38 digits. A sum beyond that range fails the job with ``UserFunctionError``.
        """
        return self._then(Sum(self._env.name_for("sum", name), self.keys, column, output))

    def top(
        self,
        k: int,
        *,
        by: str,
        item: str,
        ascending: bool = False,
        output: str = "rank",
        name: str | None = None,
    ) -> Stream:
        """The ``k`` items of each key with the largest values (``ascending``: the smallest), kept up to date.

        ``by``: the column with the current value of a row's item.
        ``item``: the column that identifies the item.
        ``output``: the column of the rank, from 1.

        Each row replaces the value of its item. The output has one row for each rank that changes: key columns, rank,
        item, value. The last row for each key and rank is the ranking. Among equal values the one reached first ranks
        first. A null value removes the item; a rank without an item has nulls.

        Only ``k`` items per key are kept. So the result is exact as long as values never get worse, as with counts:
        ``key_by("word").count().gather().top(10, by="count", item="word")``; see ``flinkplus.operators.keyed.top``.
        """
        return self._then(Top(self._env.name_for("top", name), self.keys, k, by, item, ascending, output))

    def reduce(self, function: Callable[[Any, Any], Any], *, name: str | None = None) -> Stream:
        """For each row the reduction of its key's rows up to it: ``function(so_far, row)`` returns a row."""
        return self._then(Reduce(self._env.name_for("reduce", name), self.keys, function))

    def process(
        self,
        function: Callable[[Any, Any, Any], Iterable[Any] | None],
        *,
        schema: Schema,
        on_timer: Callable[[Any, int, Any], Iterable[Any] | None] | None = None,
        name: str | None = None,
    ) -> Stream:
        """``function(key, row, ctx)`` yields rows of ``schema``; ``ctx.state(name)`` is the key's own state.

        ``ctx.event_timer(at)`` sets a timer: ``on_timer(key, at_ms, ctx)`` is called when event time reaches ``at``.
        This needs ``with_watermark`` before. ``ctx.watermark`` is event time in milliseconds (``None``: still unknown).
        """
        name = self._env.name_for("process", name)
        if on_timer is not None:
            self._check_event_time(name)
        return self._then(Process(name, self.keys, function, schema, on_timer))

    def interval_join(
        self,
        other: KeyedStream,
        *,
        left_time: str,
        right_time: str,
        lower: Duration,
        upper: Duration,
        left_prefix: str = "left_",
        right_prefix: str = "right_",
        name: str | None = None,
    ) -> Stream:
        """Join rows of this stream (left) and ``other`` (right) that have equal keys and close event times.

        ``left_time``, ``right_time``: the columns with the event times. Both streams need ``with_watermark`` before.
        ``lower``, ``upper``: bounds of right time minus left time, inclusive (``"-5 seconds"``, ``"5 seconds"``).
        ``left_prefix``, ``right_prefix``: prefixes for columns that both sides have, except for keys.

        The output has the columns of both sides; keys with the same name appear once. A row before the watermark is
        dropped, and counted in the metric ``late_rows``. Raises ``ConfigurationError`` for keys of different types.
        """
        name = self._env.name_for("interval_join", name)
        if not isinstance(other, KeyedStream):
            raise ConfigurationError(f"operator {name!r} joins keyed streams, not a {type(other).__name__}: use key_by")
        if other._env is not self._env:
            raise ConfigurationError(f"operator {name!r}: both streams must be drawn in one StreamEnvironment")
        self._check_event_time(name)
        other._check_event_time(name)
        origins = (*self._stream._origins, *other._stream._origins)
        join = IntervalJoin(
            name,
            self.keys,
            JoinSide(self.schema, self.keys, left_time, left_prefix),
            JoinSide(other.schema, other.keys, right_time, right_prefix),
            duration_ms(lower, f"operator {name!r}: lower", least=None),
            duration_ms(upper, f"operator {name!r}: upper", least=None),
            len(self._stream._origins),
        )
        join.check()
        schema, graph = join.output_schema(self.schema), self._env.graph
        node = graph.add(Node(name, "operator", join, schema))
        for at, origin in enumerate(origins):
            keys = self.keys if at < join.left_inputs else other.keys
            graph.link(origin, node, keys, "hash" if keys else "gather")
        return Stream(self._env, node, schema)

    def tumbling_window(self, column: str, size: Duration) -> WindowedStream:
        """Windows of event time; the stream needs ``with_watermark`` before.

        ``column``: the column with the event time.
        ``size``: length of a window (``"10 seconds"``).

        A row whose window was already emitted is dropped, and counted in the metric ``late_rows``.
        """
        return WindowedStream(self, column, duration_ms(size, "the size of a window", least=1))

    def _check_event_time(self, name: str) -> None:
        if not all(map(self._env.graph.has_watermarks, self._stream._origins)):
            raise ConfigurationError(f"operator {name!r} needs event time: call with_watermark on the stream before it")


@names_callers_line
class WindowedStream:
    """Windows of a keyed stream. When the watermark passes the end of a window, it emits one row per key: key columns,
    ``window_start``, ``window_end``, aggregates."""

    def __init__(self, stream: KeyedStream, column: str, size_ms: int) -> None:
        self._stream = stream
        self._column = column
        self._size_ms = size_ms

    def __repr__(self) -> str:
        return f"<WindowedStream of {self._size_ms} ms of {self._column!r} over {self._stream!r}>"

    def count(self, *, output: str = "count", name: str | None = None) -> Stream:
        """The number of rows of each key and window."""
        return self._aggregated("count", name, Aggregate(output, "count"))

    def sum(self, column: str, *, output: str = "sum", name: str | None = None) -> Stream:
        """The sum of ``column``, ignoring nulls; null when all are null. Types as in ``KeyedStream.sum``."""
        return self._aggregated("sum", name, Aggregate(output, "sum", column))

    def aggregate(self, *, name: str | None = None, **outputs: str | tuple[str, str]) -> Stream:
        """``count``, ``sum``, ``min``, ``max`` and ``mean``, by output column: ``n="count", total=("sum", "x")``."""
        aggregates = []
        for output, wanted in outputs.items():
            given = (wanted,) if isinstance(wanted, str) else tuple(wanted)
            if not 1 <= len(given) <= 2 or not all(isinstance(part, str) for part in given):
                raise ConfigurationError(f"aggregate {output!r} must be a name or (name, column), not {wanted!r}")
            aggregates.append(Aggregate(output, *given))
        return self._aggregated("aggregate", name, *aggregates)

    def _aggregated(self, kind: str, name: str | None, *aggregates: Aggregate) -> Stream:
        stream = self._stream
        name = stream._env.name_for(f"window_{kind}", name)
        stream._check_event_time(name)
        return stream._then(TumblingWindow(name, stream.keys, self._column, self._size_ms, aggregates))
