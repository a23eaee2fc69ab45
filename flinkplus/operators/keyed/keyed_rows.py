"""Users' functions over keyed state, one row at a time: ``Reduce`` and ``Process``.

Rules:

- Rows come in the order of the stream; all rows of a key come to the same subtask.
- State is read once for each distinct key of a batch, and written back once, at the end of the batch: a function that
  raises has written nothing of its batch.
- Timers (``timers``) belong to a key, as its state does. Those of event time call a function when the watermark is
  there, those of processing time in a step of their own (``OperatorInstance.on_clock``).
- Changing a value got from state, or put into it, does not change the state: so results do not depend on where batches
  are cut.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.base.columns import cut
from flinkplus.operators.base.keys import KeyCodes, check_key_columns, encode_keys
from flinkplus.operators.base.operator import (
    Inherited,
    JsonValue,
    KeyedOperator,
    OperatorContext,
    OperatorInstance,
    common_watermark,
    described_columns,
)
from flinkplus.operators.base.row import (
    USER_EXCEPTIONS,
    Row,
    RowConverter,
    make_row,
    row_type,
    rows_of,
    short_repr,
    user_error,
)
from flinkplus.operators.base.schema import parse_schema
from flinkplus.operators.base.stored_state import StateView
from flinkplus.operators.keyed.functions.context import EXPIRED_AT_ONCE, ProcessContext
from flinkplus.operators.keyed.functions.kept import EXPIRY
from flinkplus.operators.keyed.timers import EventTimers
from flinkplus.operators.keyed.views import FunctionStateView, ReducedView, TimerView
from flinkplus.operators.rows.rejects import DEAD_LETTERS, OnError, dead_letter_outputs, rejecting, tagged
from flinkplus.operators.rows.rows import Collector
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS
from flinkplus.protocol.program.description import StateDescription

CLOCK = "#clock"
"""Follows the name of an operator in the names of the states that hold its timers of processing time."""


@dataclass(frozen=True)
class Reduce(KeyedOperator):
    """Gives, for every row, ``fn(so far, row)`` of its key, and for a key's first row that row itself.

    Both arguments and the result are rows of the input's schema; the result's key columns are the function's business.
    """

    fn: Callable[[Row, Row], Any]

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        check_key_columns(schema, self.keys)
        return schema

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        return StateDescription(keys=self._key_types(schema), rows={"": described_columns(schema)}, form="tuples")

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _ReduceInstance(self, ctx)

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        return [ReducedView(self.name, schema=schema)]


class _ReduceInstance(OperatorInstance):
    def __init__(self, descriptor: Reduce, ctx: OperatorContext) -> None:
        self._fn = descriptor.fn
        self._keys = descriptor.keys
        self._ctx = ctx
        self._state = ctx.keyed_state().object_state(ctx.operator)
        self._converter = RowConverter(ctx.operator, ctx.subtask, ctx.input_schema)
        self._kind = row_type(tuple(ctx.input_schema.names))
        self._changeable = any(pa.types.is_nested(field.type) for field in ctx.input_schema)

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        key = encode_keys(batch, self._keys).made_distinct()
        keys = key.keys
        so_far: list[Any] = self._state.get_many(keys)
        rows = rows_of(batch, self._ctx)
        results: list[tuple[Any, ...]] = []
        try:
            for row, code in zip(self._ctx.noted(rows), key.codes.tolist(), strict=True):
                before = so_far[code]
                values = tuple(row) if before is None else self._combined(before, row)
                so_far[code] = values
                results.append(values)
        except USER_EXCEPTIONS as error:
            raise user_error(self._ctx.operator, self._ctx.subtask, rows[len(results)], error) from error
        output = self._converter.batch(results, rows.__getitem__)
        self._state.put_many(keys, so_far)
        yield from cut(output)

    def _combined(self, before: Any, row: Row) -> tuple[Any, ...]:
        if self._changeable:  # lists in rows: what was given out or kept must not change with what the function does
            before, row = pickle.loads(pickle.dumps((before, row)))
        values = self._converter.values(self._fn(make_row(self._kind, before), row))
        return pickle.loads(pickle.dumps(values)) if self._changeable else values


@dataclass(frozen=True)
class Process(KeyedOperator):
    """``fn(key, row, ctx)`` for every row gives an iterable of rows of ``schema``, or ``None``; ``on_timer(key, at_ms,
    ctx)`` does the same for each timer of ``ctx.event_timer``, ``on_processing_timer`` for those of
    ``ctx.processing_timer``.

    ``key`` is the value of the key column, or the tuple of values when there are several.
    ``aside``: the names and schemas of its side outputs.
    ``by_event_time``: its input has watermarks, so state expires by them.
    """

    fn: Callable[[Any, Row, ProcessContext], Any]
    schema: str | pa.Schema
    on_timer: Callable[[Any, int, ProcessContext], Any] | None = None
    on_error: OnError = "fail"
    aside: tuple[tuple[str, str | pa.Schema], ...] = ()
    on_processing_timer: Callable[[Any, int, ProcessContext], Any] | None = None
    by_event_time: bool = False
    hears_watermarks = True
    holds_rows = True

    @property
    @override
    def has_clock(self) -> bool:
        return self.on_processing_timer is not None

    @override
    def side_outputs(self, schema: pa.Schema) -> Mapping[str, pa.Schema]:
        for name, _ in self.aside:
            if not isinstance(name, str) or name in ("", DEAD_LETTERS, "rows"):
                raise ConfigurationError(f"operator {self.name!r}: a side output cannot be called {name!r}")
        dead = dead_letter_outputs(self.name, schema, self.on_error)
        return {**{name: parse_schema(columns) for name, columns in self.aside}, **dead}

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        check_key_columns(schema, self.keys)
        return parse_schema(self.schema)

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        """What functions keep under names of their own is theirs; timers must not be left behind."""
        timers = [] if self.on_timer is None else ["#timers"]
        timers += [] if self.on_processing_timer is None else [f"{CLOCK}#timers"]
        return StateDescription(keys=self._key_types(schema), rows={name: () for name in timers})

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return rejecting(ProcessInstance(self, ctx), ctx, self.on_error)

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        first = f"{self.name}/"
        mine = [name for name in states if name.startswith(first) and not name.endswith(EXPIRY)]
        views: list[StateView] = [FunctionStateView(self.name, name.removeprefix(first), name=name) for name in mine]
        views.append(TimerView(self.name))
        if self.on_processing_timer is not None:
            views.append(TimerView(self.name, "processing time", name=self.name + CLOCK))
        return views


class ProcessInstance(OperatorInstance):
    """A ``Process`` in one subtask; or another operator with these functions, that calls the first one otherwise."""

    def __init__(self, descriptor: Process, ctx: OperatorContext) -> None:
        self._fn = descriptor.fn
        self._keys = descriptor.keys
        self._ctx = ctx
        self._on_timer, self._on_clock_timer = descriptor.on_timer, descriptor.on_processing_timer
        self._timers = None if self._on_timer is None else EventTimers(ctx.keyed_state(), ctx.operator)
        self._clock_timers: EventTimers | None = None
        if self._on_clock_timer is not None:
            self._clock_timers = EventTimers(ctx.keyed_state(), ctx.operator + CLOCK)
        sides = [name for name, _ in descriptor.aside]
        self._context = ProcessContext(ctx, self._timers, sides, self._clock_timers, descriptor.by_event_time)
        self._collector = Collector(ctx, parse_schema(descriptor.schema))
        self._sides = {name: Collector(ctx, parse_schema(schema)) for name, schema in descriptor.aside}

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        rows = rows_of(batch, self._ctx)
        try:
            yield from self._called(rows, encode_keys(batch, self._keys).made_distinct())
        except UserFunctionError:
            self._context.discard()
            for collector in (self._collector, *self._sides.values()):
                collector.clear()
            raise

    def _called(self, rows: list[Row], key: KeyCodes) -> Iterator[pa.RecordBatch]:
        """What the function gives for rows. The state is written when all of that has been made."""
        fn, context = self._fn, self._context
        positions = [self._ctx.input_schema.get_field_index(column) for column in self._keys]
        context.begin(key)
        for row, code in zip(self._ctx.noted(rows), key.codes.tolist(), strict=True):
            context.code = code
            context.key = row[positions[0]] if len(positions) == 1 else tuple(row[p] for p in positions)
            try:
                result = fn(context.key, row, context)
            except ConfigurationError:  # of the program, not of the row
                raise
            except USER_EXCEPTIONS as error:
                raise user_error(self._ctx.operator, self._ctx.subtask, row, error) from error
            yield from self._collected(row, result)
        yield from self._finished(2 * len(rows))

    def _finished(self, expired: int) -> Iterator[pa.RecordBatch]:
        """The rest of the output of a batch, when its changes are written. ``expired``: maximum number of expired
        values, about, that are removed."""
        rest = list(self._flushed())
        self._context.write_back()
        self._context.states.expire(expired)
        yield from rest

    def _collected(self, cause: object, result: Any) -> Iterator[pa.RecordBatch]:
        """What a function has returned, and given to side outputs, for a row or a timer."""
        if result is not None:
            yield from self._collector.collect(cause, result)
        if self._context.aside:
            aside, self._context.aside = self._context.aside, []
            for name, row in aside:
                yield from (tagged(batch, name) for batch in self._sides[name].collect(cause, [row]))

    def _flushed(self) -> Iterator[pa.RecordBatch]:
        yield from self._collector.flush()
        for name, collector in self._sides.items():
            yield from (tagged(batch, name) for batch in collector.flush())

    @override
    def on_watermark(self, watermark_ms: int) -> Iterator[pa.RecordBatch]:
        context = self._context
        clock = context.states.clock
        context.watermark = watermark_ms
        clock.becomes_known(watermark_ms)
        if self._timers is not None and self._on_timer is not None:
            yield from self._fire(self._timers, watermark_ms, self._on_timer, clock.reaches)
        clock.reaches(watermark_ms)
        if clock.by_event_time and watermark_ms != END_OF_TIME_MS:
            context.states.expire(EXPIRED_AT_ONCE)

    def _fire(
        self,
        timers: EventTimers,
        until_ms: int,
        function: Callable[[Any, int, ProcessContext], Any],
        reached: Callable[[int], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Call ``function`` for the timers up to ``until_ms``. ``reached``: called with the time of each before."""
        context = self._context
        for due in timers.due(until_ms):
            context.batch = due.key_codes
            for at_ms, context.code, context.key in due:
                timer = f"the timer of key {short_repr(context.key)} at {at_ms} ms"
                if reached is not None:
                    reached(at_ms)
                try:
                    result = function(context.key, at_ms, context)
                except ConfigurationError:
                    raise
                except USER_EXCEPTIONS as error:
                    raise user_error(self._ctx.operator, self._ctx.subtask, timer, error) from error
                yield from self._collected(timer, result)
            context.write_back()
            yield from self._flushed()

    @property
    @override
    def clock_at_ms(self) -> int | None:
        return None if self._clock_timers is None else self._clock_timers.next_ms

    @override
    def on_clock(self) -> Iterator[pa.RecordBatch]:
        timers, now_ms = self._clock_timers, self._ctx.now_ms()
        if timers is None or self._on_clock_timer is None or now_ms <= (timers.watermark_ms or 0):
            return
        yield from self._fire(timers, now_ms, self._on_clock_timer)
        self._context.states.expire(EXPIRED_AT_ONCE)

    @override
    def end(self) -> Iterator[pa.RecordBatch]:
        if self._clock_timers is not None and self._on_clock_timer is not None:
            self._context.watermark = END_OF_TIME_MS
            yield from self._fire(self._clock_timers, END_OF_TIME_MS, self._on_clock_timer)

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        timers = None if self._timers is None else self._timers.snapshot()
        clock_timers = {} if self._clock_timers is None else {"clock_timers": self._clock_timers.snapshot()}
        own = self._context.states.snapshot()
        return {"watermark_ms": self._context.watermark, "timers": timers, **clock_timers, **own}

    @override
    def restore(self, state: JsonValue) -> None:
        saved: Any = state or {}  # None: of a version without event time
        self._set_watermark(saved.get("watermark_ms"))
        self._context.states.restore(saved)
        for timers, name in self._all_timers():
            if saved.get(name) is not None:
                timers.restore(saved[name])

    def _set_watermark(self, watermark_ms: int | None) -> None:
        self._context.watermark = watermark_ms
        self._context.states.clock.event_ms = watermark_ms

    def _all_timers(self) -> list[tuple[EventTimers, str]]:
        found = [(self._timers, "timers"), (self._clock_timers, "clock_timers")]
        return [(timers, name) for timers, name in found if timers is not None]

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        self._set_watermark(common_watermark(parts))
        self._context.states.inherit(parts)
        for timers, name in self._all_timers():
            others = []
            operator = self._ctx.operator + (CLOCK if timers is self._clock_timers else "")
            for part in parts:
                if part.keyed is not None and part.state.get(name) is not None:
                    others.append((EventTimers(part.keyed, operator), part))
                    others[-1][0].restore(part.state[name])
            timers.inherit(others)
