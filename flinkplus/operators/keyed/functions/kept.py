"""What a function keeps for each key: values, lists and maps, each for ever or for some time (``expiry``).

Rules:
- changes of a batch are in memory until ``write_back``, and are forgotten by ``discard``;
- what is got and then changed changes nothing; what is put is kept as it was then;
- of a list or a map only what is asked for is read, and only what has changed is written;
- an iteration shows what was there when it began, and ends with the call of the function that began it.

What is stored (``docs/formats.md``): a value that expires as (expiry, queued, value); of a list one object with the
numbers of its first element and of the one behind the last, and one for each element; of a map one for each entry.
``queued`` is when the removal queue looks at it: an entry of the queue with another time is of an earlier value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from typing_extensions import override

from flinkplus.operators.base.keys import KeyCodes
from flinkplus.operators.base.operator import EntryStateLike, Inherited, ObjectStateLike
from flinkplus.operators.keyed.functions.expiry import Due, Lifetime, RemovalQueue
from flinkplus.state.entries.table import owner_key
from flinkplus.state.objects import pack, unpack

VALUE_FORM, LIST_FORM, MAP_FORM = "value with ttl", "list", "map"
WITH_TTL = " with ttl"
EXPIRY = "#expiry"
"""Follows the name of a state in the name of the pages of its removal queue."""


class CurrentKey(Protocol):
    """The key for which a function runs: number ``code`` among those of ``batch``, or ``None`` outside of a call."""

    batch: KeyCodes | None
    code: int


class NamedState(ABC):
    """One named state of a function. ``form``: see ``EntryState``. ``lifetime``: ``None``: for ever."""

    form: str | None
    lifetime: Lifetime | None = None

    @abstractmethod
    def discard(self) -> None:
        """Forget what the batch has changed."""

    @abstractmethod
    def write_back(self) -> None:
        """Called at the end of each batch."""


class ValueState(NamedState):
    """One named value of the current key."""

    form: str | None = None

    def __init__(self, context: CurrentKey, state: ObjectStateLike) -> None:
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
                raise _outside()
            self._keys = batch.keys
            self._values = list(map(pack, self._read(self._keys)))
            self._changed = set()
            self._batch = batch
        return self._values

    def _read(self, keys: list[bytes]) -> list[Any]:
        return self._state.get_many(keys)

    @override
    def discard(self) -> None:
        self._changed, self._batch = set(), None

    @override
    def write_back(self) -> None:
        if self._changed:
            changed = sorted(self._changed)
            keys = [self._keys[code] for code in changed]
            self._write(keys, [unpack(self._values[code]) for code in changed], changed)
        self._changed = set()
        self._batch = None

    def _write(self, keys: list[bytes], values: list[Any], codes: Sequence[int]) -> None:
        self._state.put_many(keys, values)


class Expiring(NamedState):
    """What the states whose values expire have in common. It stands before the kind of state among the bases."""

    lifetime: Lifetime

    def __init__(self, lifetime: Lifetime, queue: RemovalQueue) -> None:
        self.lifetime = lifetime
        self.queue = queue

    @abstractmethod
    def looked_at(self, due: Sequence[Due]) -> None:
        """The turn of some names in the queue has come: remove what has expired, and queue the others again."""

    @abstractmethod
    def key_of(self, name: bytes) -> bytes:
        """The key that a name in the queue belongs to."""

    def expire(self, budget: int) -> None:
        """Remove what has expired: some ``budget`` values, and at least twice as many as were queued since the last
        time, so that the queue does not grow. Between two batches."""
        budget = max(budget, 2 * self.queue.added)
        now_ms = self.lifetime.clock.now()
        if now_ms is not None:
            for due in self.queue.take(now_ms, budget):
                self.looked_at(due)
        self.queue.added = 0

    def owned(self, other: RemovalQueue, part: Inherited) -> Iterator[Due]:
        """The entries of another subtask's queue whose keys belong here."""
        for page in other.all():
            owned = part.owned([self.key_of(name) for _, name in page])
            yield from (due for due, own in zip(page, owned, strict=True) if own)

    def _judge(
        self, due: Sequence[Due], state: ObjectStateLike
    ) -> tuple[list[bytes], dict[bytes, tuple[int, int, Any]]]:
        """Of the values that the queue's entries are of: the names of those that have expired, and the others."""
        wanted = list(dict.fromkeys(name for _, name in due))
        records = dict(zip(wanted, state.get_many(wanted), strict=True))
        mine = {name: records[name] for at_ms, name in due if records[name] is not None and records[name][1] == at_ms}
        gone = [name for name, record in mine.items() if self.lifetime.is_over(record[0])]
        return gone, {name: record for name, record in mine.items() if not self.lifetime.is_over(record[0])}

    def _sift(self, due: Sequence[Due], state: ObjectStateLike) -> None:
        """``looked_at`` where each value is an object of ``state``."""
        gone, rest = self._judge(due, state)
        if gone:
            state.delete_many(gone)
        if rest:
            again_ms = self.lifetime.expiry()
            state.put_many(list(rest), [(expiry, again_ms, value) for expiry, _, value in rest.values()])
            self.queue.add(list(rest), again_ms)

    def _queued(self, names: Sequence[bytes], stored: Sequence[Any], expiries: Sequence[int]) -> list[int]:
        """When each value that is put is looked at: those that are not stored yet are queued."""
        times = []
        for name, record, expiry in zip(names, stored, expiries, strict=True):
            if record is None:
                self.queue.add([name], expiry)
            times.append(expiry if record is None else record[1])
        return times


class ExpiringValue(Expiring, ValueState):
    """A ``ValueState`` whose values expire after they were put."""

    form = VALUE_FORM

    def __init__(self, context: CurrentKey, state: ObjectStateLike, lifetime: Lifetime, queue: RemovalQueue) -> None:
        ValueState.__init__(self, context, state)
        Expiring.__init__(self, lifetime, queue)
        self._records: list[Any] = []
        self._expiries: dict[int, int] = {}

    @override
    def _read(self, keys: list[bytes]) -> list[Any]:
        self._records = self._state.get_many(keys)
        over = self.lifetime.is_over
        self._expiries = {}
        return [None if record is None or over(record[0]) else record[2] for record in self._records]

    @override
    def get(self, default: Any = None) -> Any:
        self._loaded()
        code = self._context.code
        record = self._records[code]
        expiry = self._expiries.get(code, None if record is None else record[0])
        if expiry is None or self.lifetime.is_over(expiry):  # time may have passed within the batch: timers fire
            return default
        return super().get(default)

    @override
    def put(self, value: Any) -> None:
        super().put(value)
        self._expiries[self._context.code] = self.lifetime.expiry()

    @override
    def _write(self, keys: list[bytes], values: list[Any], codes: Sequence[int]) -> None:
        kept = [at for at, value in enumerate(values) if value is not None]
        expiries = [self._expiries[codes[at]] for at in kept]
        times = self._queued([keys[at] for at in kept], [self._records[codes[at]] for at in kept], expiries)
        records: list[Any] = [None] * len(keys)
        for at, expiry, queued in zip(kept, expiries, times, strict=True):
            records[at] = (expiry, queued, values[at])
        self._state.put_many(keys, records)

    @override
    def looked_at(self, due: Sequence[Due]) -> None:
        self._sift(due, self._state)

    @override
    def key_of(self, name: bytes) -> bytes:
        return name


class KeptEntries(NamedState):
    """What lists and maps have in common."""

    def __init__(self, context: CurrentKey, state: EntryStateLike) -> None:
        self._context = context
        self._state = state
        self._batch: KeyCodes | None = None
        self._keys: list[bytes] = []
        self._owners: dict[int, bytes] = {}

    def _owner(self) -> bytes:
        """The first bytes of the names of the current key's objects."""
        batch, code = self._context.batch, self._context.code
        if self._batch is not batch:
            if batch is None:
                raise _outside()
            self._batch, self._keys, self._owners = batch, batch.keys, {}
        owner = self._owners.get(code)
        if owner is None:
            owner = self._owners[code] = self._state.owner(self._keys[code])
        return owner

    def _during_call(self, found: Iterator[Any]) -> Iterator[Any]:
        """``found``, as long as the function runs for the same key."""
        return self._checked(found, self._context.batch, self._context.code)

    def _checked(self, found: Iterator[Any], batch: KeyCodes | None, code: int) -> Iterator[Any]:
        context = self._context
        for each in found:
            if context.batch is not batch or context.code != code:
                raise RuntimeError("an iteration over state ends with the call of the function that began it")
            yield each

    def _is_over(self, record: Sequence[Any]) -> bool:
        return self.lifetime is not None and self.lifetime.is_over(record[0])


class ExpiringEntries(Expiring, KeptEntries):
    """What lists and maps have in common whose elements and entries expire, each by itself."""

    def __init__(self, context: CurrentKey, state: EntryStateLike, lifetime: Lifetime, queue: RemovalQueue) -> None:
        super(Expiring, self).__init__(context, state)  # that of the list or the map
        Expiring.__init__(self, lifetime, queue)

    def _made(self, value: Any) -> Any:
        return self.lifetime.expiry(), pack(value)

    @override
    def key_of(self, name: bytes) -> bytes:
        return owner_key(name)


def _outside() -> RuntimeError:
    return RuntimeError("state of a key can be used only while the function it was given to runs")
