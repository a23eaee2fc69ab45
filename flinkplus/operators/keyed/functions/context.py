"""What a function of ``process`` may use: the key's state, timers, the time, side outputs."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.durations import Duration, duration_ms
from flinkplus.operators.base.keys import KeyCodes
from flinkplus.operators.base.operator import Inherited, KeyedState, OperatorContext
from flinkplus.operators.base.values import instant
from flinkplus.operators.keyed.functions.expiry import Due, LifeClock, Lifetime, RemovalQueue
from flinkplus.operators.keyed.functions.kept import (
    EXPIRY,
    LIST_FORM,
    MAP_FORM,
    VALUE_FORM,
    WITH_TTL,
    Expiring,
    ExpiringValue,
    NamedState,
    ValueState,
)
from flinkplus.operators.keyed.functions.lists import ExpiringList, ListState
from flinkplus.operators.keyed.functions.maps import ExpiringMap, MapState
from flinkplus.operators.keyed.timers import EventTimers
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS

LATE_TIMERS = "late_timers"
EXPIRED_AT_ONCE = 1024
"""Maximum number of expired values, about, that are removed when event time rises or timers of the clock have fired."""
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MILLISECOND = datetime.timedelta(milliseconds=1)


class FunctionStates:
    """The named states of the functions of one operator in one subtask."""

    def __init__(self, context: ProcessContext, state: KeyedState, clock: LifeClock) -> None:
        self._context = context
        self._state = state
        self.clock = clock
        self.values: dict[str, ValueState] = {}
        self._kept: dict[str, NamedState] = {}
        self._asked: dict[tuple[str, str, Duration | None], NamedState] = {}
        self._ttls_ms: dict[str, int | None] = {}

    def _full_name(self, name: str) -> str:
        return f"{self._context.operator}/{name}"

    def value_of(self, name: str, ttl: Duration | None) -> ValueState:
        """The value ``name``."""
        found = self._found("value", name, ttl)
        assert isinstance(found, ValueState)
        if ttl is None:
            self.values[name] = found
        return found

    def list_of(self, name: str, ttl: Duration | None) -> ListState:
        """The list ``name``."""
        found = self._found(LIST_FORM, name, ttl)
        assert isinstance(found, ListState)
        return found

    def map_of(self, name: str, ttl: Duration | None) -> MapState:
        """The map ``name``."""
        found = self._found(MAP_FORM, name, ttl)
        assert isinstance(found, MapState)
        return found

    def _found(self, kind: str, name: str, ttl: Duration | None) -> NamedState:
        """The state, made when it is not there. Raises ``ConfigurationError`` where it is of another kind."""
        if (found := self._asked.get((kind, name, ttl))) is not None:
            return found
        if not isinstance(name, str) or name.endswith(EXPIRY):
            raise ConfigurationError(f"operator {self._context.operator!r}: a state cannot be called {name!r}")
        what = f"operator {self._context.operator!r}: the ttl of state {name!r}"
        ttl_ms = None if ttl is None else duration_ms(ttl, what, least=1)
        form = kind if ttl_ms is None else kind + WITH_TTL
        kept = self._kept.get(name)
        if kept is None:
            kept = self._kept[name] = self._made(form, name, ttl_ms)
        elif (kept.form or "value") != form or self._ttls_ms.get(name, ttl_ms) != ttl_ms:
            raise ConfigurationError(
                f"operator {self._context.operator!r} asks for state {name!r} as a {form}, and has it as a "
                f"{kept.form or 'value'}{_for(self._ttls_ms.get(name))}: give one of them another name"
            )
        elif isinstance(kept, Expiring) and ttl_ms is not None:  # restored: another time holds for what is put now
            kept.lifetime = Lifetime(ttl_ms, self.clock)
        self._ttls_ms[name] = ttl_ms
        self._asked[kind, name, ttl] = kept
        return kept

    def _made(self, form: str, name: str, ttl_ms: int | None) -> NamedState:
        full, state, context = self._full_name(name), self._state, self._context
        if ttl_ms is not None:
            queue, lifetime = RemovalQueue(state.page_state(full + EXPIRY)), Lifetime(ttl_ms, self.clock)
            if form == VALUE_FORM:
                return ExpiringValue(context, state.object_state(full, form), lifetime, queue)
            expiring = ExpiringList if form == LIST_FORM + WITH_TTL else ExpiringMap
            return expiring(context, state.entry_state(full, form), lifetime, queue)
        if form == LIST_FORM:
            return ListState(context, state.entry_state(full, form))
        if form == MAP_FORM:
            return MapState(context, state.entry_state(full, form))
        return ValueState(context, state.object_state(full))

    @property
    def _expiring(self) -> dict[str, Expiring]:
        return {name: kept for name, kept in self._kept.items() if isinstance(kept, Expiring)}

    def discard(self) -> None:
        """Forget what the batch has changed."""
        for kept in self._kept.values():
            kept.discard()

    def write_back(self) -> None:
        """Write what the batch has changed."""
        for kept in self._kept.values():
            kept.write_back()

    def expire(self, budget: int) -> None:
        """Remove what has expired, some ``budget`` values of each state."""
        for kept in self._expiring.values():
            kept.expire(budget)

    def snapshot(self) -> dict[str, Any]:
        """Besides the keyed state: what can expire, and by which time."""
        expiring = self._expiring
        if not expiring:
            return {}
        states = {
            name: {"form": kept.form, "ttl_ms": kept.lifetime.ttl_ms, **kept.queue.saved()}
            for name, kept in expiring.items()
            if isinstance(kept, NamedState)
        }
        return {"expiring": states, "by_event_time": self.clock.by_event_time, "first_ms": self.clock.first_ms}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the result of ``snapshot``. Raises ``ConfigurationError`` where times are of another clock."""
        for name, state in self._restorable(saved):
            self._restored(name, state).queue.restore(state)
        self.clock.first_ms = saved.get("first_ms", self.clock.event_ms)

    def _restorable(self, saved: Mapping[str, Any]) -> list[tuple[str, Any]]:
        states = saved.get("expiring", {})
        if states and saved["by_event_time"] != self.clock.by_event_time:
            was, now = (
                "event time" if by else "processing time" for by in (saved["by_event_time"], not saved["by_event_time"])
            )
            raise ConfigurationError(
                f"operator {self._context.operator!r}: the states {sorted(states)} expire by {was}, and would by {now} "
                "now: keep the stream's watermarks as they were, or drop the operator's state"
            )
        return list(states.items())

    def _restored(self, name: str, saved: Mapping[str, Any]) -> Expiring:
        kept = self._kept.get(name)
        if kept is None:
            kept = self._kept[name] = self._made(saved["form"], name, saved["ttl_ms"])
        if not isinstance(kept, Expiring) or kept.form != saved["form"]:
            raise ConfigurationError(
                f"operator {self._context.operator!r}: state {name!r} was a {saved['form']}, and is a "
                f"{kept.form or 'value'} now: give the changed state another name"
            )
        return kept

    def inherit(self, parts: Sequence[Inherited]) -> None:
        """Take what belongs here from all subtasks."""
        known = [part.state["first_ms"] for part in parts if part.state and part.state.get("first_ms") is not None]
        self.clock.first_ms = max(known, default=self.clock.event_ms)
        due: dict[str, tuple[Expiring, list[Due]]] = {}
        for part in parts:
            for name, saved in self._restorable(part.state or {}):
                kept = self._restored(name, saved)
                if part.keyed is not None:
                    queue = RemovalQueue(part.keyed.page_state(self._full_name(name) + EXPIRY))
                    queue.restore(saved)
                    due.setdefault(name, (kept, []))[1].extend(kept.owned(queue, part))
        for kept, entries in due.values():
            for due_ms, entry in sorted(entries):
                kept.queue.add([entry], due_ms)


def _for(ttl_ms: int | None) -> str:
    return "" if ttl_ms is None else f" of {ttl_ms} ms"


class ProcessContext:
    """What a ``Process`` function may use. ``batch``, ``code``, ``aside``, ``states`` and methods from ``begin`` on are
    the operator's.

    ``timers``, ``clock_timers``: of event time and of processing time; ``None``: without.
    ``sides``: the names of its side outputs. ``aside``: what the function has given to them.
    ``by_event_time``: the stream has watermarks, so state expires by them.
    """

    def __init__(
        self,
        ctx: OperatorContext,
        timers: EventTimers | None = None,
        sides: Collection[str] = (),
        clock_timers: EventTimers | None = None,
        by_event_time: bool = False,
    ) -> None:
        self._sides = sides
        self.aside: list[tuple[str, Any]] = []
        self._late_before = 0
        self.operator = ctx.operator
        self.subtask = ctx.subtask
        self.key: Any = None
        self.batch: KeyCodes | None = None
        self.code = 0
        self._now_ms, self._rng = ctx.now_ms, ctx.rng
        self.states = FunctionStates(self, ctx.keyed_state(), LifeClock(by_event_time, ctx.now_ms))
        self._values = self.states.values
        self._timers = timers
        self._clock_timers = clock_timers
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
        timers, at_ms = self._timers_in_use(), milliseconds(at)
        timers.set(at_ms, self._key_bytes(), self.key)
        if self.watermark is not None and at_ms <= self.watermark and not self.at_end:
            self._metrics[LATE_TIMERS] += 1

    def delete_event_timer(self, at: int | datetime.datetime) -> None:
        """Take back ``event_timer`` of the current key; no error when it is not set."""
        self._timers_in_use().unset(milliseconds(at), self._key_bytes())

    def processing_timer(self, at: int | datetime.datetime) -> None:
        """Have ``on_processing_timer`` called for the current key when the time of day is ``at``, as ``event_timer``;
        for a time that has passed, at once after the batch."""
        self._clock_timers_in_use().set(milliseconds(at), self._key_bytes(), self.key)

    def delete_processing_timer(self, at: int | datetime.datetime) -> None:
        """Take back ``processing_timer`` of the current key; no error when it is not set."""
        self._clock_timers_in_use().unset(milliseconds(at), self._key_bytes())

    def _timers_in_use(self) -> EventTimers:
        if self._timers is None:
            raise RuntimeError(f"operator {self.operator!r} has no timers: give process(..., on_timer=...)")
        return self._timers

    def _clock_timers_in_use(self) -> EventTimers:
        if self._clock_timers is None:
            raise RuntimeError(
                f"operator {self.operator!r} has no timers of processing time: give process(..., "
                "on_processing_timer=...)"
            )
        return self._clock_timers

    def _key_bytes(self) -> bytes:
        if self._keys[0] is not self.batch:
            if self.batch is None:
                raise RuntimeError("timers of a key can be set only while the function that sets them runs")
            self._keys = self.batch, self.batch.keys
        return self._keys[1][self.code]

    def state(self, name: str, ttl: Duration | None = None) -> ValueState:
        """The value kept under ``name`` for the current key. ``ttl``: how long after ``put`` it is forgotten
        (``"1 hour"``), by event time where the stream has watermarks, otherwise by processing time."""
        if ttl is None:
            value = self._values.get(name)
            if value is not None:
                return value
        return self.states.value_of(name, ttl)

    def list_state(self, name: str, ttl: Duration | None = None) -> ListState:
        """The list kept under ``name`` for the current key. ``ttl``: as for ``state``, of each element."""
        return self.states.list_of(name, ttl)

    def map_state(self, name: str, ttl: Duration | None = None) -> MapState:
        """The map kept under ``name`` for the current key. ``ttl``: as for ``state``, of each entry."""
        return self.states.map_of(name, ttl)

    def now(self) -> float:
        """The time of day in seconds since the Unix epoch, to the millisecond, of the message that the row came in.

        It is the same when a standby repeats the step, and never goes back.
        """
        return self._now_ms() / 1000

    @property
    def processing_time(self) -> int:
        """``now()`` in milliseconds since 1970, as timers take it."""
        return self._now_ms()

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
        self.states.discard()
        for timers in (self._timers, self._clock_timers):
            if timers is not None:
                timers.discard()
        if self._timers is not None:
            self._metrics[LATE_TIMERS] = self._late_before
        self.aside, self.batch, self._keys = [], None, (None, [])

    def write_back(self) -> None:
        """Write what the batch changed to the state."""
        self.states.write_back()
        for timers in (self._timers, self._clock_timers):
            if timers is not None:
                timers.write_back()
        self.batch = None
        self._keys = None, []


def milliseconds(at: int | datetime.datetime) -> int:
    """A time in milliseconds since 1970."""
    if isinstance(at, datetime.datetime):
        return (instant(at) - _EPOCH) // _MILLISECOND
    return operator.index(at)
