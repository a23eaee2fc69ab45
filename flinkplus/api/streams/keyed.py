"""Streams by key: operators with state for each key, and what starts from them (windows, joins)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from flinkplus.api.callers import names_callers_line
from flinkplus.api.streams.aggregates import AggregateText, aggregates_of
from flinkplus.api.streams.joined import JoinSettings, check_streams, joined
from flinkplus.api.streams.rows import Schema
from flinkplus.api.streams.windowed import WindowedStream
from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.durations import Duration, duration_ms
from flinkplus.operators.base.operator import Operator
from flinkplus.operators.base.schema import columns_text
from flinkplus.operators.event_time.assigners import CalendarWindows, FixedWindows, Sessions
from flinkplus.operators.event_time.windows import OnLate
from flinkplus.operators.expressions.column import ColumnExpression
from flinkplus.operators.joins.bounds import Bounds, bounds_of
from flinkplus.operators.joins.sides import How
from flinkplus.operators.keyed.keyed import Count, Sum
from flinkplus.operators.keyed.keyed_rows import Process, Reduce
from flinkplus.operators.keyed.latest import Emit
from flinkplus.operators.keyed.rankings import TopRows, orders_of
from flinkplus.operators.keyed.running import RunningAggregates
from flinkplus.operators.keyed.top import Top
from flinkplus.operators.processors.handle import TimeMode, schema_of
from flinkplus.operators.processors.transform import TransformWithState, pickled_processor, time_mode_of
from flinkplus.operators.rows.rejects import OnError

if TYPE_CHECKING:
    from flinkplus.api.streams.stream import Stream

Bound: TypeAlias = "Duration | ColumnExpression"
"""A duration; or SQL text, or a column of ``flinkplus.functions``, that gives a time."""


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
        return self._stream._then(operator, "hash" if self.keys else "gather", self.keys)

    def count(self, *, output: str = "count", emit: Emit = "every", name: str | None = None) -> Stream:
        """Adds the running count of the row's key, columnar. ``emit``: as in ``aggregate``."""
        return self._then(Count(self._env.name_for("count", name), self.keys, output, emit=emit))

    def sum(self, column: str, *, output: str = "sum", emit: Emit = "every", name: str | None = None) -> Stream:
        """Adds the running sum of ``column`` for the row's key, columnar; null while all values were null.

        Integers are summed as int64, floating point as float64, ``decimal(p, s)`` as ``decimal(p + 10, s)`` with a
        maximum of 38 digits. A sum beyond that range fails the job with ``UserFunctionError``.
        ``emit``: as in ``aggregate``.
        """
        return self._then(Sum(self._env.name_for("sum", name), self.keys, column, output, emit=emit))

    def aggregate(self, *, emit: Emit = "every", name: str | None = None, **outputs: AggregateText) -> Stream:
        """Running aggregates: for each row the key columns and the aggregates of its key's rows up to it.

        By output column: ``n="count", total=("sum", "x"), paid=agg("sum", "x", where="is_paid")``. The aggregates are
        those of windows without ``collect_list``. ``first`` and ``last`` are by the order in which rows come.

        ``emit``: ``every`` row gives a row, or only the ``latest`` of each key leaves, at each checkpoint and at the
        end of input (earlier where very many keys have changed). Event time ends there: call ``with_watermark`` again
        behind it. Not for jobs with loops or unaligned checkpoints.
        """
        name = self._env.name_for("aggregate", name)
        return self._then(RunningAggregates(name, self.keys, aggregates_of(outputs), emit=emit))

    def top(
        self,
        k: int,
        *,
        by: str | tuple[str, ...],
        item: str | None = None,
        ascending: bool = False,
        output: str = "rank",
        name: str | None = None,
    ) -> Stream:
        """The ``k`` best rows, or items, of each key: those with the largest values (``ascending``: the smallest), kept
        up to date.

        Without ``item`` each row is ranked for itself. ``by`` is a column, or several, of which later ones decide among
        equal values (``("price", "at ASC")``); of equal rows the earlier one ranks first. The output has one row for
        each rank that changes: key columns, ``output`` (the rank, from 1), and the other columns of the row that has
        the rank now. Rows whose value is null or NaN are not ranked. The ``k`` rows of each key are kept.

        ``item``: the column that identifies an item. Each row sets the value ``by`` (one column) of its item, and takes
        the place of the row before. The output has key columns, rank, item, value. Among equal values the one reached
        first ranks first. A null value removes the item; a rank without an item has nulls. Only ``k`` items per key are
        kept. So the result is exact as long as values never get worse, as with counts:
        ``key_by("word").count().gather().top(10, by="count", item="word")``; see ``flinkplus.operators.keyed.top``.

        In both, the last row for each key and rank is the ranking.
        """
        name = self._env.name_for("top", name)
        if item is None:
            orders = orders_of(f"operator {name!r}: by", by, self.schema, not ascending)
            return self._then(TopRows(name, self.keys, k, orders, output))
        if not isinstance(by, str):
            raise ConfigurationError(f"operator {name!r}: with item, by is one column, not {by!r}")
        return self._then(Top(name, self.keys, k, by, item, ascending, output))

    def reduce(self, function: Callable[[Any, Any], Any], *, name: str | None = None) -> Stream:
        """For each row the reduction of its key's rows up to it: ``function(so_far, row)`` returns a row."""
        return self._then(Reduce(self._env.name_for("reduce", name), self.keys, function))

    def process(
        self,
        function: Callable[[Any, Any, Any], Iterable[Any] | None],
        *,
        schema: Schema,
        on_timer: Callable[[Any, int, Any], Iterable[Any] | None] | None = None,
        on_processing_timer: Callable[[Any, int, Any], Iterable[Any] | None] | None = None,
        on_error: OnError = "fail",
        side_outputs: Mapping[str, Schema] | None = None,
        name: str | None = None,
    ) -> Stream:
        """``function(key, row, ctx)`` yields rows of ``schema``; ``ctx.state(name)`` is the key's own state, as are
        ``ctx.list_state(name)`` and ``ctx.map_state(name)``. With ``ttl=`` it is forgotten after some time: of event
        time if the stream has watermarks, otherwise of processing time.

        ``ctx.event_timer(at)`` sets a timer: ``on_timer(key, at_ms, ctx)`` is called when event time reaches ``at``.
        This needs ``with_watermark`` before. ``ctx.watermark`` is event time in milliseconds (``None``: still unknown).
        ``ctx.processing_timer(at)`` sets one for which ``on_processing_timer(key, at_ms, ctx)`` is called when the
        time of day is ``at``; ``ctx.processing_time`` is that of the row, in milliseconds. When all input has ended,
        all timers fire.

        ``side_outputs``: further streams by name, with their schemas. ``ctx.side_output(name, row)`` gives a row to
        one; ``side_output(name)`` of the result is the stream.
        ``on_error``: what a row does on which ``function`` fails; see ``Stream.map``. All that it has given is dropped,
        and its changes to state and timers are undone. A timer on which ``on_timer`` fails always fails the job.
        """
        name = self._env.name_for("process", name)
        if not isinstance(side_outputs, Mapping | None):
            raise ConfigurationError(f"operator {name!r}: side_outputs is a dict of names and schemas")
        if on_timer is not None:
            self._check_event_time(name)
        return self._then(
            Process(
                name,
                self.keys,
                function,
                schema,
                on_timer,
                on_error,
                tuple((side_outputs or {}).items()),
                on_processing_timer,
                self._has_event_time,
            )
        )

    def transform_with_state(
        self,
        processor: Any,
        *,
        schema: Any,
        time_mode: TimeMode = "none",
        initial_state: None = None,
        name: str | None = None,
    ) -> Stream:
        """Runs a ``pyspark.sql.streaming.StatefulProcessor`` as it is, written for ``transformWithState``.

        ``schema``: of the rows that it gives: text, or a ``StructType``.
        ``time_mode``: ``none``; ``event_time``: timers are of event time, and the stream needs ``with_watermark``
        before; ``processing_time``: timers and times to live are of the time of day. PySpark's words mean the same.
        ``initial_state``: not supported.

        ``handleInputRows`` is called for each key of a batch. Raises ``ConfigurationError`` for another object.
        """
        name = self._env.name_for("transform_with_state", name)
        if initial_state is not None:
            raise ConfigurationError(
                f"operator {name!r}: initial_state is not supported: union the rows of the former state with the stream"
            )
        mode = time_mode_of(name, time_mode)
        if mode == "event_time":
            self._check_event_time(name)
        pickled = pickled_processor(name, processor, mode)
        return self._then(TransformWithState(name, self.keys, pickled, schema_of(schema), mode))

    def join(
        self,
        other: KeyedStream,
        *,
        how: How = "inner",
        state_ttl: Duration | None = None,
        left_time: str | None = None,
        right_time: str | None = None,
        left_prefix: str = "left_",
        right_prefix: str = "right_",
        name: str | None = None,
    ) -> Stream:
        """Join all rows of this stream (left) and ``other`` (right) that have equal keys.

        ``how``: ``inner``, ``left``, ``right`` or ``full``: also rows that nothing matches, of the side that it names,
        with nulls for the other side. They come when no match can come any more: after ``state_ttl``, or at the end of
        the input. So no row is ever taken back.
        ``state_ttl``: rows are paired if their event times are at most so far apart (``"1 hour"``); a row is kept until
        event time is so much later. ``None``: **all rows of both sides are kept for ever**, in RocksDB when memory is
        full. ``left_time`` and ``right_time``, with ``state_ttl`` only: the columns with the event times; both streams
        need ``with_watermark`` before. For processing time, call ``with_processing_time`` on both.
        ``left_prefix``, ``right_prefix``: prefixes for columns that both sides have, except for keys.

        The output has the columns of both sides; keys with the same name appear once. A null in a key matches nothing.
        Without ``state_ttl`` event time ends here: call ``with_watermark`` again behind the join. With it, it is an
        ``interval_join`` with the bounds ``-state_ttl`` and ``state_ttl``.
        """
        name = self._env.name_for("join", name)
        times = (left_time, right_time)
        if state_ttl is None:
            if times != (None, None):
                raise ConfigurationError(
                    f"operator {name!r}: left_time and right_time belong to state_ttl; give it too"
                )
            bounds = Bounds()
        else:
            if None in times:
                raise ConfigurationError(
                    f"operator {name!r}: state_ttl is event time; give left_time and right_time, the columns with the "
                    "times of the rows"
                )
            ttl_ms = duration_ms(state_ttl, f"operator {name!r}: state_ttl")
            bounds = Bounds(-ttl_ms, ttl_ms)
        return joined(self, other, JoinSettings(name, how, times, (left_prefix, right_prefix)), bounds)

    def interval_join(
        self,
        other: KeyedStream,
        *,
        left_time: str,
        right_time: str,
        lower: Bound,
        upper: Bound,
        within: Duration | None = None,
        how: How = "inner",
        left_prefix: str = "left_",
        right_prefix: str = "right_",
        name: str | None = None,
    ) -> Stream:
        """Join rows of this stream (left) and ``other`` (right) that have equal keys and close event times.

        ``left_time``, ``right_time``: the columns with the event times. Both streams need ``with_watermark`` before.
        ``lower``, ``upper``: bounds of right time minus left time, inclusive (``"-5 seconds"``, ``"5 seconds"``). In
        the place of a duration, an expression gives the first or the last right time itself: ``upper="expires"``, a
        column of the left. Expressions of columns of the right (``"right.expires"``) are bounds of the left time, and a
        duration beside them is then that of left time minus right time. A row whose bound is null matches nothing.
        ``within``: maximum distance of the two times; needed where ``lower`` is an expression, so that rows of the
        other side can be dropped.
        ``how``: as in ``join``: rows that nothing matches come when event time has passed their bounds.
        ``left_prefix``, ``right_prefix``: prefixes for columns that both sides have, except for keys.

        The output has the columns of both sides; keys with the same name appear once. A row before the watermark is
        dropped, and counted in the metric ``late_rows``. Raises ``ConfigurationError`` for keys of different types.
        """
        name = self._env.name_for("interval_join", name)
        joining = JoinSettings(name, how, (left_time, right_time), (left_prefix, right_prefix))
        check_streams(name, self, other)
        if None in joining.times:
            raise ConfigurationError(
                f"operator {name!r}: give left_time and right_time, the columns with the times of the rows"
            )
        bounds = bounds_of(name, lower, upper, within, (self.schema, other.schema))
        return joined(self, other, joining, bounds)

    def tumbling_window(
        self,
        column: str,
        size: Duration,
        *,
        offset: Duration = 0,
        time_zone: str | None = None,
        allowed_lateness: Duration = 0,
        emit_every: Duration | None = None,
        on_late: OnLate = "drop",
    ) -> WindowedStream:
        """Windows of event time that do not overlap; the stream needs ``with_watermark`` before.

        ``column``: the column with the event time.
        ``size``: length of a window (``"10 seconds"``).
        ``offset``: windows begin so much later than multiples of ``size`` since 1970 (UTC).
        ``time_zone``: windows are whole days of this zone (``"Europe/Berlin"``) and as long as these are; ``offset`` is
        then local time.
        ``allowed_lateness``: for how long after its end, in event time, late rows still change a window.
        ``emit_every``: emits early rows for windows that are open, whenever event time has advanced so much.

        ``on_late``: what a row does whose windows are over, which the metric ``late_rows`` counts. ``drop``: it is left
        out. ``side-output``: it goes to ``late_rows()`` of what is made of the windows.
        """
        size_ms = duration_ms(size, "the size of a window", least=1)
        return self._fixed(column, size_ms, size_ms, offset, time_zone, allowed_lateness, emit_every, on_late)

    def hopping_window(
        self,
        column: str,
        size: Duration,
        hop: Duration,
        *,
        offset: Duration = 0,
        time_zone: str | None = None,
        allowed_lateness: Duration = 0,
        emit_every: Duration | None = None,
        on_late: OnLate = "drop",
    ) -> WindowedStream:
        """As ``tumbling_window``, with a window every ``hop``, at most ``size``: a row may be in several windows."""
        size_ms = duration_ms(size, "the size of a window", least=1)
        hop_ms = duration_ms(hop, "the hop of windows", least=1)
        return self._fixed(column, size_ms, hop_ms, offset, time_zone, allowed_lateness, emit_every, on_late)

    def session_window(self, column: str, gap: Duration, *, on_late: OnLate = "drop") -> WindowedStream:
        """Sessions: rows of a key, each at most ``gap`` of event time after the one before.

        ``window_start`` is the time of the first row, ``window_end`` that of the last one plus ``gap``. A session is
        emitted when the watermark has passed its end, at most an eighth of ``gap`` later. ``on_late``: as in
        ``tumbling_window``.
        """
        sessions = Sessions(duration_ms(gap, "the gap of sessions", least=1))
        return WindowedStream(self, column, sessions, on_late=on_late)

    def _fixed(
        self,
        column: str,
        size_ms: int,
        hop_ms: int,
        offset: Duration,
        time_zone: str | None,
        allowed_lateness: Duration,
        emit_every: Duration | None,
        on_late: OnLate,
    ) -> WindowedStream:
        offset_ms = duration_ms(offset, "the offset of windows", least=None)
        lateness_ms = duration_ms(allowed_lateness, "allowed_lateness")
        early_ms = None if emit_every is None else duration_ms(emit_every, "emit_every", least=1)
        if time_zone is None:
            windows = FixedWindows(size_ms, hop_ms, offset_ms)
        else:
            windows = CalendarWindows(size_ms, hop_ms, offset_ms, time_zone)
        return WindowedStream(self, column, windows, lateness_ms, early_ms, on_late)

    @property
    def _has_event_time(self) -> bool:
        return all(map(self._env.graph.has_watermarks, self._stream._origins))

    def _check_event_time(self, name: str) -> None:
        if not self._has_event_time:
            raise ConfigurationError(f"operator {name!r} needs event time: call with_watermark on the stream before it")
