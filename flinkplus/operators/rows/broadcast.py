"""Broadcast state: all subtasks get all rows of one stream, and keep the same of them; rows of another stream read it.

Rules:

- the broadcast rows pass one subtask, so that all others get them in one order. Where two snapshots are of one
  checkpoint, their broadcast state is equal: at another parallelism any copy will do;
- the state is changed by the function for broadcast rows alone, and that depends on the row and the state alone: it has
  neither the clock nor random numbers;
- a state is a mapping, held in memory. Keys are texts, whole numbers, bytes, dates, and tuples of these; values are
  what can be pickled. What a function gets is its own copy;
- it is stored in ``BUCKETS`` pages for each state. A change writes the page of its key, at the end of the batch. A key
  stays in the page in which it was put first: an equal key may have another representation, and so another page.
"""

from __future__ import annotations

import datetime
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import pyarrow as pa
from typing_extensions import override

from flinkplus.operators.base.operator import (
    Inherited,
    JsonValue,
    KeyedState,
    Operator,
    OperatorContext,
    OperatorInstance,
    described_columns,
)
from flinkplus.operators.base.row import USER_EXCEPTIONS, rows_of, user_error
from flinkplus.operators.base.schema import parse_schema
from flinkplus.operators.base.stored_state import NamedView, ShownRows, StateView, StoredState
from flinkplus.operators.rows.rows import Collector
from flinkplus.protocol.program.description import StateDescription
from flinkplus.state.objects import pack, unpack

BUCKETS = 64
Kept = dict[Any, tuple[int, object]]
"""Key -> its page, and its value, packed."""
_KEYS = (str, int, bytes, datetime.date)


def _bucket(key: Any) -> int:
    """The page of a key. Raises ``TypeError`` for what cannot be a key."""
    for part in key if type(key) is tuple else (key,):
        if not isinstance(part, _KEYS) or isinstance(part, bool):
            raise TypeError(
                f"a key of broadcast state is a text, a whole number, bytes, a date, or a tuple of these, not {part!r}"
            )
    return crc32(repr(key).encode()) % BUCKETS


class BroadcastState(Mapping[Any, Any]):
    """A broadcast state, to be read."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def __getitem__(self, key: Any) -> Any:
        return unpack(self._kept[key][1])

    def __iter__(self) -> Iterator[Any]:
        return iter(tuple(self._kept))

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"<broadcast state of {len(self)} keys>"


class WritableState(BroadcastState, MutableMapping[Any, Any]):
    """The same for the function for broadcast rows. ``changed``: the pages to write."""

    def __init__(self, kept: Kept, changed: set[int]) -> None:
        super().__init__(kept)
        self._changed = changed

    def __setitem__(self, key: Any, value: Any) -> None:
        """Raises ``TypeError`` for what cannot be a key or is ``None``, and what pickle raises."""
        if value is None:
            raise TypeError("a value of broadcast state cannot be None: delete the key")
        page = _bucket(key)
        if (before := self._kept.get(key)) is not None:
            page = before[0]
        self._kept[key] = page, pack(value)
        self._changed.add(page)

    def __delitem__(self, key: Any) -> None:
        page, _ = self._kept.pop(key)
        self._changed.add(page)


class _States:
    """The states of one subtask, by name."""

    def __init__(self, operator: str, state: KeyedState) -> None:
        self._operator, self._state = operator, state
        self._kept: dict[str, Kept] = {}
        self._changed: dict[str, set[int]] = {}

    @property
    def names(self) -> list[str]:
        return sorted(self._kept)

    def of(self, name: str) -> Kept:
        """What is kept under ``name``."""
        return self._kept.setdefault(name, {})

    def writable(self, name: str) -> WritableState:
        return WritableState(self.of(name), self._changed.setdefault(name, set()))

    def write_back(self) -> None:
        """Write the pages that have changed."""
        for name, changed in self._changed.items():
            if not changed:
                continue
            pages: dict[int, list[tuple[Any, Any]]] = {bucket: [] for bucket in sorted(changed)}
            for key, (bucket, value) in self._kept[name].items():
                if bucket in pages:
                    pages[bucket].append((key, unpack(value)))
            state = self._state.page_state(f"{self._operator}#{name}")
            state.put_many([_page(bucket) for bucket in pages], [page or None for page in pages.values()])
            changed.clear()

    def load(self, names: Sequence[str], state: KeyedState) -> None:
        """Take what ``state`` has of these."""
        for name in names:
            pages = state.page_state(f"{self._operator}#{name}").get_many([_page(at) for at in range(BUCKETS)])
            self._kept[name] = {key: (at, pack(value)) for at, page in enumerate(pages) for key, value in page or ()}

    def take_over(self, names: Sequence[str], state: KeyedState) -> None:
        """As ``load``, for a state that becomes this subtask's own."""
        self.load(names, state)
        for name in names:
            self._changed[name] = set(range(BUCKETS))
        self.write_back()


def _check_has_run(result: object) -> None:
    """Raises ``TypeError`` for what a generator function or a coroutine function gives before it runs."""
    if isinstance(result, (Generator, Coroutine, AsyncGenerator)):
        kind = type(result).__name__
        if isinstance(result, Coroutine):
            result.close()  # it will not be awaited
        raise TypeError(f"on_broadcast gives no rows and awaits nothing, but returned a {kind}")


def _page(bucket: int) -> bytes:
    return b"%02d" % bucket


@dataclass(frozen=True, kw_only=True)
class BroadcastView(NamedView):
    """The keys and values of one state, of subtask 0: all others have the same."""

    @override
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        if stored.subtask.endswith("[0]"):
            for page in stored.page_state(self.name).get_many([_page(at) for at in range(BUCKETS)]):
                if page is not None:
                    yield ShownRows([b""] * len(page), [{"key": key, "value": value} for key, value in page])


class BroadcastContext:
    """What the functions may use. ``writable``: the one for broadcast rows."""

    def __init__(self, states: _States, ctx: OperatorContext, writable: bool) -> None:
        self._states, self._ctx, self._writable = states, ctx, writable

    def broadcast_state(self, name: str) -> BroadcastState:
        """The state of this name, a mapping; a ``MutableMapping`` in the function for broadcast rows."""
        return self._states.writable(name) if self._writable else BroadcastState(self._states.of(name))

    def now(self) -> float:
        """The time of day in seconds since the Unix epoch, the same when the step is repeated. Raises ``RuntimeError``
        in the function for broadcast rows: each subtask would have another time."""
        if self._writable:
            raise RuntimeError("the function for broadcast rows has no clock: all subtasks must keep the same")
        return self._ctx.now_ms() / 1000


@dataclass(frozen=True)
class ProcessBroadcast(Operator):
    """``fn(row, ctx)`` gives rows of ``schema`` for each row; ``on_broadcast(row, ctx)`` keeps broadcast rows.

    ``broadcast_schema``: of the broadcast rows. ``row_inputs``: how many inputs, the first ones, have the other rows.
    """

    name: str
    fn: Callable[..., Any]
    on_broadcast: Callable[..., Any]
    schema: str | pa.Schema
    broadcast_schema: pa.Schema
    row_inputs: int
    several_schemas = True
    shares_state = True

    @property
    @override
    def has_state(self) -> bool:
        return True

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return parse_schema(self.schema)

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        return StateDescription(settings={"broadcast": [str(c) for c in described_columns(self.broadcast_schema)]})

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _ProcessBroadcastInstance(self, ctx)

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        return [BroadcastView(self.name, name.removeprefix(f"{self.name}#"), name=name) for name in states]


class _ProcessBroadcastInstance(OperatorInstance):
    def __init__(self, descriptor: ProcessBroadcast, ctx: OperatorContext) -> None:
        self._descriptor, self._ctx = descriptor, ctx
        self._states = _States(ctx.operator, ctx.keyed_state())
        self._reading = BroadcastContext(self._states, ctx, writable=False)
        self._keeping = BroadcastContext(self._states, ctx, writable=True)
        self._collector = Collector(ctx, parse_schema(descriptor.schema))
        self._broadcast = OperatorContext(
            ctx.operator, ctx.subtask, ctx.index, ctx.parallelism, descriptor.broadcast_schema
        )

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        fn, collector = self._descriptor.fn, self._collector
        collector.clear()
        for row in self._ctx.noted(rows_of(batch, self._ctx)):
            try:
                result = fn(row, self._reading)
            except USER_EXCEPTIONS as error:
                raise user_error(self._ctx.operator, self._ctx.subtask, row, error) from error
            yield from collector.collect(row, result)
        yield from collector.flush()

    @override
    def process_input(self, position: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        if position < self._descriptor.row_inputs:
            return self.process(batch)
        for row in self._ctx.noted(rows_of(batch, self._broadcast)):
            try:
                result = self._descriptor.on_broadcast(row, self._keeping)
                _check_has_run(result)
            except USER_EXCEPTIONS as error:
                raise user_error(self._ctx.operator, self._ctx.subtask, row, error) from error
        self._states.write_back()
        return ()

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        return {"states": self._states.names}

    @override
    def restore(self, state: JsonValue) -> None:
        assert isinstance(state, dict)
        self._states.load(state["states"], self._ctx.keyed_state())

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        """All have the same: take it from the first whose state can be read here."""
        for part in parts:
            if part.keyed is not None:
                self._states.take_over(part.state["states"], part.keyed)
                return
