"""Streams by key: operators with state for each key, and what starts from them (windows, joins)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flinkplus.api.callers import names_callers_line
from flinkplus.api.streams.aggregates import AggregateText, aggregates_of
from flinkplus.api.streams.rows import Schema
from flinkplus.api.streams.windowed import WindowedStream
from flinkplus.errors import ConfigurationError
from flinkplus.graph import Node
from flinkplus.operators.base.durations import Duration, duration_ms
from flinkplus.operators.base.operator import Operator
from flinkplus.operators.base.schema import columns_text
from flinkplus.operators.event_time.assigners import CalendarWindows, FixedWindows, Sessions
from flinkplus.operators.event_time.interval_join import IntervalJoin, JoinSide
from flinkplus.operators.event_time.windows import OnLate
from flinkplus.operators.keyed.keyed import Count, Sum
from flinkplus.operators.keyed.keyed_rows import Process, Reduce
from flinkplus.operators.keyed.latest import Emit
from flinkplus.operators.keyed.rankings import TopRows, orders_of
from flinkplus.operators.keyed.running import RunningAggregates
from flinkplus.operators.keyed.top import Top
from flinkplus.operators.rows.rejects import OnError

if TYPE_CHECKING:
    from flinkplus.api.streams.stream import Stream


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
        on_error: OnError = "fail",
        side_outputs: Mapping[str, Schema] | None = None,
        name: str | None = None,
    ) -> Stream:
        """``function(key, row, ctx)`` yields rows of ``schema``; ``ctx.state(name)`` is the key's own state.

        ``ctx.event_timer(at)`` sets a timer: ``on_timer(key, at_ms, ctx)`` is called when event time reaches ``at``.
        This needs ``with_watermark`` before. ``ctx.watermark`` is event time in milliseconds (``None``: still unknown).

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
            Process(name, self.keys, function, schema, on_timer, on_error, tuple((side_outputs or {}).items()))
        )

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
        return self._stream._of(node, schema)

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

    def _check_event_time(self, name: str) -> None:
        if not all(map(self._env.graph.has_watermarks, self._stream._origins)):
            raise ConfigurationError(f"operator {name!r} needs event time: call with_watermark on the stream before it")
