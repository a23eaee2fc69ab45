"""Streams, with which the user draws the job.

Rules: a stream is a description; nothing runs before ``execute``. ``map_batches`` and the built-in operators work on
Arrow record batches; functions on rows are slower. Schemas are DDL strings (``"word string, n long"``) or
``pyarrow.Schema``. Methods raise ``ConfigurationError`` for invalid arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from flinkplus.api.callers import names_callers_line
from flinkplus.api.drawing import Drawing, node_of
from flinkplus.api.loops import close_loop
from flinkplus.api.streams.keyed import KeyedStream
from flinkplus.api.streams.rows import StreamRows
from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph, Node
from flinkplus.operators.base.durations import Duration, duration_ms
from flinkplus.operators.base.keys import check_key_columns
from flinkplus.operators.base.operator import Operator
from flinkplus.operators.base.routes import Route
from flinkplus.operators.base.schema import columns_text, united
from flinkplus.operators.event_time.event_time import WithWatermark
from flinkplus.operators.event_time.processing_time import WithProcessingTime
from flinkplus.operators.keyed.deduplicate import Deduplicate
from flinkplus.operators.keyed.keyed import Sum
from flinkplus.operators.keyed.last import KeepLast
from flinkplus.operators.keyed.rankings import orders_of
from flinkplus.operators.rows.broadcast import BroadcastContext, ProcessBroadcast
from flinkplus.operators.rows.loop import LoopHead
from flinkplus.operators.rows.rejects import ADVICE, SideOutput
from flinkplus.operators.rows.union import Union

Schema: TypeAlias = "str | pa.Schema"


@names_callers_line
class Stream(StreamRows):
    """A stream of rows with a schema."""

    def __init__(self, env: Drawing, node: int, schema: pa.Schema, sides: Mapping[str, int] | None = None) -> None:
        self._env = env
        self._sides = sides or {}
        self._origins: tuple[int, ...] = (node,)
        self._union: int | None = None
        self.schema = schema

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}: {columns_text(self.schema)}>"

    @property
    def name(self) -> str:
        """The name of the operator that produces this stream."""
        return self._env.graph.nodes[self._origins[0]].name

    def _of(self, node: int, schema: pa.Schema) -> Stream:
        """The output of ``node``, which was drawn."""
        return Stream(self._env, node, schema)

    def side_output(self, name: str) -> Stream:
        """A stream that the operator before gives beside this one. Raises ``ConfigurationError`` without one."""
        if name not in self._sides:
            known = ", ".join(map(repr, self._sides)) or "none"
            advice = ADVICE.get(name, "")
            raise ConfigurationError(f"operator {self.name!r} has no side output {name!r}; it has {known}{advice}")
        node = self._sides[name]
        return self._of(node, self._env.graph.nodes[node].schema)

    def _then(self, operator: Operator, route: Route | None = None, keys: tuple[str, ...] = ()) -> Stream:
        schema, graph = operator.output_schema(self.schema), self._env.graph
        operator.side_outputs(self.schema)  # raises before anything is drawn
        drawn = Node(operator.name, "operator", operator, schema)
        if route is None:
            return _given(self, graph.add(drawn, node_of(self)), operator, schema)
        node = graph.add(drawn)
        for origin in self._origins:
            graph.link(origin, node, keys, route)
        return _given(self, node, operator, schema)

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
        if idle_ms is not None and not _is_fused_with_source(self):
            raise ConfigurationError(
                f"operator {name!r}: idle_after needs with_watermark before the first key_by or union, fused with its "
                "source"
            )
        return self._then(WithWatermark(name, column, delay_ms, every_ms, idle_ms))

    def with_processing_time(
        self, output: str = "processed_at", *, every: Duration = "1 second", name: str | None = None
    ) -> Stream:
        """Add the column ``output``: the time of day at which a row was processed, which is event time from here on.

        Windows of this column are windows of processing time. The time is logged: a repeated step has the same one.
        ``every``: how often event time follows the clock while a live source has nothing to read, so that windows end.
        A source that is not live ends them with its next rows, or at its end.

        Raises ``ConfigurationError`` behind an exchange.
        """
        name = self._env.name_for("with_processing_time", name)
        every_ms = duration_ms(every, f"operator {name!r}: every", least=1)
        if not _is_fused_with_source(self):
            raise ConfigurationError(
                f"operator {name!r}: processing time is taken before the first key_by or union, fused with the source"
            )
        return self._then(WithProcessingTime(name, output, every_ms))

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
        rows = self._then(head, "forward")
        return close_loop(self._env.graph, rows, body(rows))

    def connect_broadcast(
        self,
        other: Stream,
        function: Callable[[Any, BroadcastContext], Iterable[Any]],
        *,
        on_broadcast: Callable[[Any, BroadcastContext], object],
        schema: Schema,
        name: str | None = None,
    ) -> Stream:
        """Rows of this stream, processed with what is kept of all rows of ``other``, such as rules.

        ``function(row, ctx)`` gives the output rows for a row of this stream, any number of them, of ``schema``.
        ``on_broadcast(row, ctx)`` is called in every subtask, with every row of ``other`` in the same order, and keeps
        what is needed of it. ``ctx.broadcast_state(name)`` is a mapping: read by ``function``, changed by
        ``on_broadcast`` alone. It is in the checkpoints, the same in all subtasks.

        Rows of both streams meet in the order in which they come; a recovery repeats it. Event time behind this is that
        of the stream that is further behind. Raises ``ConfigurationError`` for a stream of another environment.
        """
        name = self._env.name_for("connect_broadcast", name)
        if not isinstance(other, Stream):
            raise ConfigurationError(f"operator {name!r}: broadcast rows are a stream, not a {type(other).__name__}")
        if other._env is not self._env:
            raise ConfigurationError(f"operator {name!r}: both streams must be drawn in one StreamEnvironment")
        if not callable(function) or not callable(on_broadcast):
            raise ConfigurationError(f"operator {name!r}: function and on_broadcast must be functions")
        origins, graph = self._origins, self._env.graph
        body = ProcessBroadcast(name, function, on_broadcast, schema, other.schema, len(origins))
        output = body.output_schema(self.schema)
        rules = other._then(Union(f"{name} broadcast"), "gather")
        node = graph.add(Node(name, "operator", body, output))
        for origin in origins:
            graph.link(origin, node, (), "forward")
        graph.link(node_of(rules), node, (), "broadcast")
        return self._of(node, output)

    def deduplicate(
        self,
        *columns: str,
        ttl: Duration | None = None,
        keep: Literal["first", "last"] = "first",
        order_by: str | tuple[str, ...] | None = None,
        name: str | None = None,
    ) -> Stream:
        """One row for each value of ``columns``: the first one, or the last one by ``order_by``.

        ``keep="first"``: for example of the ID of an event that its producer may repeat.
        ``keep="last"``: each row whose ``order_by`` (a number, date or timestamp) is at least as large as that of all
        rows of its key before. The last of them is the key's last row: write them with ``to_postgres(mode="upsert")``.
        ``order_by``: a column, or several, of which later ones decide among equal values. ``"x DESC"`` is the reverse
        order: with ``("price", "at DESC")`` the last row is that with the highest price, of equal ones the earliest.

        ``ttl``: time for which further rows are dropped after a kept one (``"10 minutes"``, or seconds). The first row
        at or after its end is kept, and restarts it. ``None``: for ever; the state then grows with every new value.

        The time is processing time, and logged, so that a failover changes nothing. Nulls are equal to each other.
        """
        ttl_ms = None if ttl is None else duration_ms(ttl, "deduplicate: ttl", least=1)
        if keep not in ("first", "last") or (keep == "last") != (order_by is not None):
            raise ConfigurationError(f"deduplicate: keep={keep!r}; it is 'first', or 'last' with order_by, columns")
        if order_by is not None:
            if ttl_ms is not None:
                raise ConfigurationError("deduplicate: keep='last' takes no ttl")
            orders = orders_of("deduplicate: order_by", order_by, self.schema, descending=False)
            last = KeepLast(self._env.name_for("deduplicate", name), columns, orders)
            return self.key_by(*columns)._then(last)
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


def _given(stream: Stream, node: int, operator: Operator, schema: pa.Schema) -> Stream:
    """The output of ``operator``, drawn as ``node`` behind ``stream``. With side outputs, each is a node behind it."""
    side_outputs = operator.side_outputs(stream.schema)
    if not side_outputs:
        return stream._of(node, schema)
    graph = stream._env.graph
    drawn = [_output(graph, node, operator, output, columns) for output, columns in side_outputs.items()]
    rows = _output(graph, node, operator, None, schema)
    return Stream(stream._env, rows, schema, dict(zip(side_outputs, drawn, strict=True)))


def _output(graph: JobGraph, node: int, operator: Operator, output: str | None, schema: pa.Schema) -> int:
    """Draws one output of an operator that has several. ``output``: the name of a side output."""
    body = SideOutput(f"{operator.name} {output or 'rows'}", operator.name, output, schema)
    return graph.add(Node(body.name, "operator", body, schema), node)


def _is_fused_with_source(stream: Stream) -> bool:
    """Whether no exchange lies between the stream and its source."""
    vertices = stream._env.graph.fuse_draft()
    return len(stream._origins) == 1 and any(v.is_source for v in vertices if stream._origins[0] in v.nodes)


class _UnitedStream(Stream):
    """The result of ``union``. Its operator is drawn once, when another operator is fused with it."""

    def __init__(self, env: Drawing, origins: tuple[int, ...], schema: pa.Schema, name: str) -> None:
        super().__init__(env, origins[0], schema)
        self._origins = origins
        self._name = name

    @property
    def name(self) -> str:
        return self._name
