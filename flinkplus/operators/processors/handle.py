"""The handle of PySpark's ``StatefulProcessor``: its states and timers over those of ``ProcessContext``.

Rules:
- what is kept are tuples, as long as the schema of the state has columns; lists and rows are taken as tuples;
- a state has the name that the processor gives it. The timers of a key are also kept in a map, for ``listTimers``;
- times to live are of processing time, as in Spark.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import pyarrow as pa

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.durations import MAX_TIME_MS, duration_ms
from flinkplus.operators.base.schema import parse_schema
from flinkplus.operators.keyed.functions.context import ProcessContext
from flinkplus.operators.keyed.functions.kept import ValueState
from flinkplus.operators.keyed.functions.lists import ListState
from flinkplus.operators.keyed.functions.maps import MapState

TimeMode = Literal["none", "event_time", "processing_time"]
TIME_MODES = ("none", "event_time", "processing_time")
TIMERS = "#timers"
"""The name of the map with the timers of a key."""


def schema_of(schema: Any) -> pa.Schema:
    """The columns of a schema as PySpark takes it: text, or a ``StructType``. Raises ``ConfigurationError``."""
    if isinstance(schema, (str, pa.Schema)):
        return parse_schema(schema)
    fields = getattr(schema, "fields", None)
    if fields is None:
        raise ConfigurationError(f"a schema is text or a StructType, not a {type(schema).__name__}")
    columns = [f"`{one.name}` {one.dataType.simpleString()}{'' if one.nullable else ' not null'}" for one in fields]
    return parse_schema(", ".join(columns))


class _State:
    """``columns``: how many a value has."""

    def __init__(self, name: str, schema: Any) -> None:
        self._name = name
        self._columns = len(schema_of(schema))

    def _tuple(self, value: Any) -> tuple[Any, ...]:
        return as_tuple(self._name, value, self._columns)


def as_tuple(state: str, value: Any, columns: int) -> tuple[Any, ...]:
    """A value of a state as a tuple. Raises ``TypeError`` for one that does not have its columns."""
    if not isinstance(value, (tuple, list)) or len(value) != columns:
        shown = f"of {len(value)}" if isinstance(value, (tuple, list)) else f"but a {type(value).__name__}"
        raise TypeError(f"a value of state {state!r} is a tuple of {columns} columns, not one {shown}")
    return tuple(value)


class SparkValueState(_State):
    """PySpark's ``ValueState``."""

    def __init__(self, name: str, schema: Any, kept: ValueState) -> None:
        super().__init__(name, schema)
        self._kept = kept

    def exists(self) -> bool:
        """Whether there is a value."""
        return self._kept.get() is not None

    def get(self) -> tuple[Any, ...] | None:
        """The value, or ``None``."""
        found: tuple[Any, ...] | None = self._kept.get()
        return found

    def update(self, newValue: Any) -> None:
        """Put a value."""
        self._kept.put(self._tuple(newValue))

    def clear(self) -> None:
        """Remove the value."""
        self._kept.delete()


class SparkListState(_State):
    """PySpark's ``ListState``."""

    def __init__(self, name: str, schema: Any, kept: ListState) -> None:
        super().__init__(name, schema)
        self._kept = kept

    def exists(self) -> bool:
        """Whether there is an element."""
        return not self._kept.is_empty()

    def get(self) -> Iterator[tuple[Any, ...]]:
        """The elements."""
        return iter(self._kept)

    def put(self, newState: Iterable[Any]) -> None:
        """Replace all elements."""
        self._kept.put([self._tuple(value) for value in newState])

    def appendValue(self, newState: Any) -> None:
        """Add an element."""
        self._kept.append(self._tuple(newState))

    def appendList(self, newState: Iterable[Any]) -> None:
        """Add elements."""
        self._kept.extend([self._tuple(value) for value in newState])

    def clear(self) -> None:
        """Remove all elements."""
        self._kept.clear()


class SparkMapState(_State):
    """PySpark's ``MapState``."""

    def __init__(self, name: str, key_schema: Any, schema: Any, kept: MapState) -> None:
        super().__init__(name, schema)
        self._key_columns = len(schema_of(key_schema))
        self._kept = kept

    def _key(self, key: Any) -> tuple[Any, ...]:
        return as_tuple(self._name, key, self._key_columns)

    def exists(self) -> bool:
        """Whether there is an entry."""
        return not self._kept.is_empty()

    def getValue(self, key: Any) -> tuple[Any, ...] | None:
        """The value of a key, or ``None``."""
        found: tuple[Any, ...] | None = self._kept.get(self._key(key))
        return found

    def containsKey(self, key: Any) -> bool:
        """Whether there is an entry for a key."""
        return self._kept.contains(self._key(key))

    def updateValue(self, key: Any, value: Any) -> None:
        """Put an entry."""
        self._kept.put(self._key(key), self._tuple(value))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """The entries."""
        return self._kept.items()

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """The keys."""
        return self._kept.keys()

    def values(self) -> Iterator[tuple[Any, ...]]:
        """The values."""
        return self._kept.values()

    def removeKey(self, key: Any) -> None:
        """Remove an entry."""
        self._kept.remove(self._key(key))

    def clear(self) -> None:
        """Remove all entries."""
        self._kept.clear()


class Declared:
    """In the place of a ``ProcessContext`` where a processor is only asked which states it has."""

    at_end = False

    def __init__(self, operator: str) -> None:
        self.operator = operator

    def state(self, name: str, ttl: str | None = None) -> Any:
        """No state."""
        if ttl is not None:
            duration_ms(ttl, f"operator {self.operator!r}: the ttl of state {name!r}", least=1)

    list_state = map_state = state


class SparkHandle:
    """PySpark's ``StatefulProcessorHandle``. ``init`` gets it, and keeps what it needs of it."""

    def __init__(self, context: ProcessContext | Declared, time_mode: TimeMode) -> None:
        self._context = context
        self._mode = time_mode
        self._names: set[str] = set()
        self._timers = None if time_mode == "none" else context.map_state(TIMERS)

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> SparkValueState:
        """A value for each key."""
        ttl = self._ttl(stateName, ttlDurationMs)
        return SparkValueState(stateName, schema, self._context.state(stateName, ttl))

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> SparkListState:
        """A list for each key."""
        ttl = self._ttl(stateName, ttlDurationMs)
        return SparkListState(stateName, schema, self._context.list_state(stateName, ttl))

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> SparkMapState:
        """A map for each key."""
        ttl = self._ttl(stateName, ttlDurationMs)
        return SparkMapState(stateName, userKeySchema, valueSchema, self._context.map_state(stateName, ttl))

    def _ttl(self, name: str, ttl_ms: int | None) -> str | None:
        """Raises ``ConfigurationError`` for a name that is taken, and for a time to live that there cannot be."""
        where = f"operator {self._context.operator!r}: state {name!r}"
        if name == TIMERS or name in self._names:
            raise ConfigurationError(f"{where} is there already: give each state a name of its own")
        self._names.add(name)
        if ttl_ms is None:
            return None
        if self._mode != "processing_time":
            raise ConfigurationError(
                f"{where} has a time to live, which needs time_mode='processing_time', as in Spark"
            )
        return f"{ttl_ms} ms"

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Have ``handleExpiredTimer`` called for the current key at a time, in milliseconds since 1970. When all input
        has ended, timers fire that were registered before; what is registered then is left, as Spark leaves all."""
        set_, _ = self._of_mode()
        if self._context.at_end:
            return
        set_(expiryTimestampMs)
        if self._timers is not None:
            self._timers.put(_kept_time(expiryTimestampMs), None)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Take a timer of the current key back."""
        _, unset = self._of_mode()
        unset(expiryTimestampMs)
        self.fired(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """The timers of the current key, ascending."""
        return iter(()) if self._timers is None else self._timers.keys()

    def fired(self, at_ms: int) -> None:
        """A timer of the current key is not set any more."""
        if self._timers is not None:
            self._timers.remove(_kept_time(at_ms))

    def _of_mode(self) -> tuple[Any, Any]:
        """What sets a timer, and takes it back. Raises ``ConfigurationError`` without time."""
        context = self._context
        assert isinstance(context, ProcessContext)
        if self._mode == "none":
            raise ConfigurationError(
                f"operator {context.operator!r} has no timers: give transform_with_state(..., time_mode='event_time') "
                "or 'processing_time'"
            )
        if self._mode == "event_time":
            return context.event_timer, context.delete_event_timer
        return context.processing_timer, context.delete_processing_timer

    def deleteIfExists(self, stateName: str) -> None:
        """Not supported. Raises ``ConfigurationError``."""
        raise ConfigurationError(
            f"operator {self._context.operator!r}: deleteIfExists would remove state {stateName!r} of all keys, which "
            "a running job cannot do; resume without it, or drop the operator's state with drop_state"
        )


def _kept_time(at_ms: int) -> int:
    """A time of a timer, which is kept within these bounds."""
    return min(max(operator.index(at_ms), -MAX_TIME_MS), MAX_TIME_MS)
