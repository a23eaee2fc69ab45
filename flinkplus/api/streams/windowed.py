"""Windows of a keyed stream, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flinkplus.api.callers import names_callers_line
from flinkplus.api.streams.aggregates import AggregateText, aggregates_of
from flinkplus.api.streams.joined import JoinSettings, windows_joined
from flinkplus.api.streams.rows import Schema
from flinkplus.errors import ConfigurationError
from flinkplus.operators.event_time.assigners import Assigner
from flinkplus.operators.event_time.contents import Aggregated, Called, Content, Ranked, WindowBounds
from flinkplus.operators.event_time.windows import KeyedWindow, OnLate
from flinkplus.operators.joins.sides import How
from flinkplus.operators.keyed.aggregates import Aggregate
from flinkplus.operators.keyed.rankings import Ties, orders_of

if TYPE_CHECKING:
    from flinkplus.api.streams.keyed import KeyedStream
    from flinkplus.api.streams.stream import Stream


@names_callers_line
class WindowedStream:
    """Windows of a keyed stream. When the watermark passes the end of a window, it emits one row per key: key columns,
    ``window_start``, ``window_end``, aggregates.

    With ``allowed_lateness`` or ``emit_every`` it may emit more rows for a key and window, the last of which counts.
    The column ``window_timing`` behind the bounds says which one it is: ``early``, ``on time`` or ``late``.

    With ``on_late="side-output"``, ``late_rows()`` of the result is the stream of rows that came too late.
    """

    def __init__(
        self,
        stream: KeyedStream,
        column: str,
        assigner: Assigner,
        lateness_ms: int = 0,
        early_ms: int | None = None,
        on_late: OnLate = "drop",
    ) -> None:
        self._stream = stream
        self._column = column
        self._assigner = assigner
        self._lateness_ms = lateness_ms
        self._early_ms = early_ms
        self._on_late = on_late

    def __repr__(self) -> str:
        return f"<WindowedStream of {self._assigner} of {self._column!r} over {self._stream!r}>"

    def count(self, *, output: str = "count", name: str | None = None) -> Stream:
        """The number of rows of each key and window."""
        return self._made("count", name, Aggregated((Aggregate(output, "count"),)))

    def sum(self, column: str, *, output: str = "sum", name: str | None = None) -> Stream:
        """The sum of ``column``, ignoring nulls; null when all are null. Types as in ``KeyedStream.sum``."""
        return self._made("sum", name, Aggregated((Aggregate(output, "sum", column),)))

    def aggregate(self, *, name: str | None = None, **outputs: AggregateText) -> Stream:
        """Several aggregates, by output column: ``n="count"``, ``total=("sum", "x")``, ``paid=agg("sum", "x",
        where="is_paid")``.

        ``count``, ``sum``, ``min``, ``max``, ``avg`` (or ``mean``), ``count_distinct``, ``first``, ``last`` and
        ``collect_list``. Nulls do not count. ``first``, ``last`` and ``collect_list`` are by event time; rows of equal
        times are in the order in which they came.
        """
        return self._made("aggregate", name, Aggregated(aggregates_of(outputs)))

    def top(
        self,
        k: int,
        *,
        by: str | tuple[str, ...],
        ascending: bool = False,
        ties: Ties = "first",
        output: str = "rank",
        name: str | None = None,
    ) -> Stream:
        """The ``k`` rows of each key and window with the largest values of ``by`` (``ascending``: the smallest).

        The ranking is emitted once, when the window ends: a row for each rank, from 1, with the key columns, the bounds
        of the window, ``output`` and the other columns of the row. If the rows have a column ``window_start`` or
        ``window_end`` of their own, it stays and the bound is left out. Rows whose value is null or NaN are not ranked.

        ``by``: a column, or several, of which later ones decide among equal values: ``("price", "at ASC")``.
        ``ties``: the ranks of rows with equal values. ``first``: one after the other, by event time, as SQL's
        ``ROW_NUMBER``. ``rank``: the same, and the next rank counts the rows before it (``RANK``: 1, 1, 3). ``dense``:
        the same, and the next one is one more (``DENSE_RANK``: 1, 1, 2). With ``rank`` and ``dense`` all rows with a
        rank up to ``k`` are kept and emitted, which may be more than ``k``.
        """
        orders = orders_of("top: by", by, self._stream.schema, not ascending)
        return self._made("top", name, Ranked(k, orders, output, ties))

    def process(
        self,
        function: Callable[[Any, WindowBounds, list[Any]], Iterable[Any] | None],
        *,
        schema: Schema,
        name: str | None = None,
    ) -> Stream:
        """``function(key, window, rows)`` yields rows of ``schema`` for each key and window, when the window ends.

        ``window``: ``start`` and ``end`` (``datetime``), ``start_ms``, ``end_ms``, ``timing``.
        ``rows``: a list of all rows of the key in the window, by event time. All of them are kept until then: where
        aggregates will do, use ``aggregate(...).map(...)``.
        """
        return self._made("process", name, Called(function, schema))

    def join(
        self,
        other: WindowedStream,
        *,
        how: How = "inner",
        left_prefix: str = "left_",
        right_prefix: str = "right_",
        name: str | None = None,
    ) -> Stream:
        """Join the rows of this stream (left) and ``other`` (right) that have equal keys and are in the same window.

        ``other``: windows of the same size, hop and offset, of another keyed stream and its own column of times.
        ``how``: ``inner``, ``left``, ``right`` or ``full``: also rows that nothing matches, of the side that it names,
        with nulls for the other side.
        ``left_prefix``, ``right_prefix``: prefixes for columns that both sides have, except for keys.

        All comes out when the window ends: the columns of both sides, keys with the same name once, ``window_start``
        and ``window_end``. If rows have a column of such a name themselves, it stays and the bound is left out. A null
        in a key matches nothing. Raises ``ConfigurationError`` for windows that differ, and for sessions.
        """
        stream = self._stream
        name = stream._env.name_for("window_join", name)
        if not isinstance(other, WindowedStream):
            raise ConfigurationError(
                f"operator {name!r} joins windows with windows, not with a {type(other).__name__}: call "
                "tumbling_window or hopping_window on both keyed streams"
            )
        if self._assigner != other._assigner:
            raise ConfigurationError(
                f"operator {name!r}: the windows of both sides must be the same, not {self._assigner} and "
                f"{other._assigner}"
            )
        for side in (self, other):
            if side._lateness_ms or side._early_ms is not None or side._on_late != "drop":
                raise ConfigurationError(
                    f"operator {name!r}: a join of windows takes no allowed_lateness, emit_every and on_late; give "
                    "with_watermark a longer delay"
                )
        joining = JoinSettings(name, how, (self._column, other._column), (left_prefix, right_prefix))
        return windows_joined(stream, other._stream, joining, self._assigner)

    def _made(self, kind: str, name: str | None, content: Content) -> Stream:
        stream = self._stream
        name = stream._env.name_for(f"window_{kind}", name)
        stream._check_event_time(name)
        window = KeyedWindow(
            name, stream.keys, self._column, self._assigner, content, self._lateness_ms, self._early_ms, self._on_late
        )
        return stream._then(window)
