"""Users' functions over keyed state, one row at a time: ``Reduce`` and ``Process``.

Rules:

- Rows come in the order of the stream; all rows of a key come to the same subtask.
- State is read once for each distinct key of a batch, and written back once, at the end of the batch: a function that
  raises has written nothing of its batch.
- Event-time timers (``timers``) belong to a key, as its state does; they call a function when the watermark is there.
- Changing a value got from state, or put into it, does not change the state: so results do not depend on where batches
  are cut.
"""

from __future__ import annotations

import datetime
import operator
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    ObjectStateLike,
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
from flinkplus.operators.base.stored_state import ObjectView, StateView
from flinkplus.operators.base.values import instant
from flinkplus.operators.keyed.timers import EventTimers
from flinkplus.operators.keyed.views import ReducedView, TimerView
from flinkplus.operators.rows.rejects import DEAD_LETTERS, OnError, dead_letter_outputs, rejecting, tagged
from flinkplus.operators.rows.rows import Collector
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS
from flinkplus.protocol.program.description import StateDescription
from flinkplus.state.objects import pack, unpack

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
LATE_TIMERS = "late_timers"
_MILLISECOND = datetime.timedelta(milliseconds=1)


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


class ValueState:
    """One named value of the current key."""

    def __init__(self, context: ProcessContext, state: ObjectStateLike) -> None:
        self._context = context
        self._state = state
        self._batch: KeyCodes | None = None
        self._keys: list[bytes] = []
        self._values: list[Any] = []
        self._changed: set[int] = set()

    def get(self, default: Any = None) -> Any:
        """The value, a fresh copy; ``default`` when the key has no value."""
        value = unpack(self._loaded()[self._context.code])
        return default if value is None else value

    def put(self, value: Any) -> None:
        """Keep ``value`` for the key, as it is now; ``None`` deletes. Raises what pickle raises."""
        packed = pack(value)
        self._loaded()[self._context.code] = packed
        self._changed.add(self._context.code)

    def delete(self) -> None:
        """Remove the value."""
        self.put(None)

    def _loaded(self) -> list[Any]:
        batch = self._context.batch
        if self._batch is not batch:
            if batch is None:
                raise RuntimeError("state of a key can be used only while the function it was given to runs")
            self._keys = batch.keys
            self._values = list(map(pack, self._state.get_many(self._keys)))
            self._changed = set()
            self._batch = batch
        return self._values

    def discard(self) -> None:
        """Forget what the batch has changed."""
        self._changed, self._batch = set(), None

    def write_back(self) -> None:
        """Called at the end of each batch."""
        if self._changed:
            changed = sorted(self._changed)
            keys = [self._keys[code] for code in changed]
            self._state.put_many(keys, [unpack(self._values[code]) for code in changed])
        self._changed = set()
        self._batch = None


class ProcessContext:
    """What a ``Process`` function may use. ``batch``, ``code``, ``aside`` and methods from ``begin`` on are the
    operator's.

    ``sides``: the names of its side outputs. ``aside``: what the function has given to them.
    """

    def __init__(self, ctx: OperatorContext, timers: EventTimers | None = None, sides: Collection[str] = ()) -> None:
        self._sides = sides
        self.aside: list[tuple[str, Any]] = []
        self._late_before = 0
        self.operator = ctx.operator
        self.subtask = ctx.subtask
        self.key: Any = None
        self.batch: KeyCodes | None = None
        self.code = 0
        self._state = ctx.keyed_state()
        self._now_ms, self._rng = ctx.now_ms, ctx.rng
        self._values: dict[str, ValueState] = {}
        self._timers = timers
        self._metrics = ctx.metrics
        if timers is not None:
            self._metrics.setdefault(LATE_TIMERS, 0)
        self._keys: tuple[KeyCodes | None, list[bytes]] = (None, [])
        self.watermark: int | None = None

    @property
    def at_end(self) -> bool:
        """Whether all input has ended, so that all timers fire."""
        return self.watermark == END_OF_TIME_MS

    def event_timer(self, at: int | datetime.datetime) -> None:
        """Have ``on_timer`` called for the current key when the watermark reaches ``at`` (milliseconds since 1970, or a
        datetime; without a zone it is local time). For a time that has passed: when the watermark rises next, and
        counted in the metric ``late_timers``.
        """
        timers, at_ms = self._timers_in_use(), _milliseconds(at)
        timers.set(at_ms, self._key_bytes(), self.key)
        if self.watermark is not None and at_ms <= self.watermark and not self.at_end:
            self._metrics[LATE_TIMERS] += 1

    def delete_event_timer(self, at: int | datetime.datetime) -> None:
        """Take back ``event_timer`` of the current key; no error when it is not set."""
        self._timers_in_use().unset(_milliseconds(at), self._key_bytes())

    def _timers_in_use(self) -> EventTimers:
        if self._timers is None:
            raise RuntimeError(f"operator {self.operator!r} has no timers: give process(..., on_timer=...)")
        return self._timers

    def _key_bytes(self) -> bytes:
        if self._keys[0] is not self.batch:
            if self.batch is None:
                raise RuntimeError("timers of a key can be set only while the function that sets them runs")
            self._keys = self.batch, self.batch.keys
        return self._keys[1][self.code]

    def state(self, name: str) -> ValueState:
        """The value kept under ``name`` for the current key."""
        value = self._values.get(name)
        if value is None:
            value = self._values[name] = ValueState(self, self._state.object_state(f"{self.operator}/{name}"))
        return value

    def now(self) -> float:
        """The time of day in seconds since the Unix epoch, to the millisecond, of the message that the row came in.

        It is the same when a standby repeats the step, and never goes back.
        """
        return self._now_ms() / 1000

    def random(self) -> float:
        """A random number, at least 0 and below 1; the same when a standby repeats the step."""
        return self._rng().random()

    def side_output(self, name: str, row: Any) -> None:
        """Give a row to the side output ``name`` (``process(..., side_outputs={name: schema})``)."""
        if name not in self._sides:
            raise KeyError(f"no side output {name!r} among {list(self._sides)}")
        self.aside.append((name, row))

    def begin(self, batch: KeyCodes) -> None:
        """The function is called for the keys of a batch."""
        self.batch = batch
        self._late_before = self._metrics.get(LATE_TIMERS, 0)

    def discard(self) -> None:
        """Forget what the batch has changed."""
        for value in self._values.values():
            value.discard()
        if self._timers is not None:
            self._timers.discard()
            self._metrics[LATE_TIMERS] = self._late_before
        self.aside, self.batch, self._keys = [], None, (None, [])

    def write_back(self) -> None:
        """Write what the batch changed to the state."""
        for value in self._values.values():
            value.write_back()
        if self._timers is not None:
            self._timers.write_back()
        self.batch = None
        self._keys = None, []


@dataclass(frozen=True)
class Process(KeyedOperator):
    """``fn(key, row, ctx)`` for every row gives an iterable of rows of ``schema``, or ``None``; ``on_timer(key, at_ms,
    ctx)`` does the same for each timer of ``ctx.event_timer``.

    ``key`` is the value of the key column, or the tuple of values when there are several.
    ``aside``: the names and schemas of its side outputs.
    """

    fn: Callable[[Any, Row, ProcessContext], Any]
    schema: str | pa.Schema
    on_timer: Callable[[Any, int, ProcessContext], Any] | None = None
    on_error: OnError = "fail"
    aside: tuple[tuple[str, str | pa.Schema], ...] = ()
    hears_watermarks = True
    holds_rows = True

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
        timers = {} if self.on_timer is None else {"#timers": ()}
        return StateDescription(keys=self._key_types(schema), rows={**timers})

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return rejecting(_ProcessInstance(self, ctx), ctx, self.on_error)

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        first = f"{self.name}/"
        mine = [name for name in states if name.startswith(first)]
        values = [ObjectView(self.name, name.removeprefix(first), name=name) for name in mine]
        return [*values, TimerView(self.name)]


class _ProcessInstance(OperatorInstance):
    def __init__(self, descriptor: Process, ctx: OperatorContext) -> None:
        self._fn = descriptor.fn
        self._keys = descriptor.keys
        self._ctx = ctx
        self._on_timer = descriptor.on_timer
        self._timers = None if self._on_timer is None else EventTimers(ctx.keyed_state(), ctx.operator)
        self._context = ProcessContext(ctx, self._timers, [name for name, _ in descriptor.aside])
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
            except USER_EXCEPTIONS as error:
                raise user_error(self._ctx.operator, self._ctx.subtask, row, error) from error
            yield from self._collected(row, result)
        rest = list(self._flushed())
        context.write_back()
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
        context, on_timer = self._context, self._on_timer
        context.watermark = watermark_ms
        if self._timers is None or on_timer is None:
            return
        for timers in self._timers.due(watermark_ms):
            context.batch = timers.key_codes
            for at_ms, context.code, context.key in timers:
                timer = f"the timer of key {short_repr(context.key)} at {at_ms} ms"
                try:
                    result = on_timer(context.key, at_ms, context)
                except USER_EXCEPTIONS as error:
                    raise user_error(self._ctx.operator, self._ctx.subtask, timer, error) from error
                yield from self._collected(timer, result)
            context.write_back()
            yield from self._flushed()

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        timers = None if self._timers is None else self._timers.snapshot()
        return {"watermark_ms": self._context.watermark, "timers": timers}

    @override
    def restore(self, state: JsonValue) -> None:
        saved: Any = state or {}  # None: of a version without event time
        self._context.watermark = saved.get("watermark_ms")
        if self._timers is not None and saved.get("timers") is not None:
            self._timers.restore(saved["timers"])

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        self._context.watermark = common_watermark(parts)
        if self._timers is None:
            return
        others = []
        for part in parts:
            if part.keyed is not None and part.state["timers"] is not None:
                others.append((EventTimers(part.keyed, self._ctx.operator), part))
                others[-1][0].restore(part.state["timers"])
        self._timers.inherit(others, self._context.watermark)


def _milliseconds(at: int | datetime.datetime) -> int:
    if isinstance(at, datetime.datetime):
        return (instant(at) - _EPOCH) // _MILLISECOND
    return operator.index(at)
