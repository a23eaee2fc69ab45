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

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from typing_extensions import override

from flinkplus.operators.base.keys import KeyCodes
from flinkplus.operators.base.operator import EntryStateLike, Inherited, ObjectStateLike
from flinkplus.operators.keyed.expiry import Due, Lifetime, RemovalQueue
from flinkplus.operators.keyed.map_keys import key_bytes, key_value
from flinkplus.state.entries.table import owner_key
from flinkplus.state.objects import pack, unpack

VALUE_FORM, LIST_FORM, MAP_FORM = "value with ttl", "list", "map"
WITH_TTL = " with ttl"
EXPIRY = "#expiry"
"""Follows the name of a state in the name of the pages of its removal queue."""
READ_ELEMENTS = 512
_HEADER = b""
_NUMBER = struct.Struct(">Q")
_GONE = object()


class CurrentKey(Protocol):
    """The key for which a function runs: number ``code`` among those of ``batch``, or ``None`` outside of a call."""

    batch: KeyCodes | None
    code: int


class Kept(ABC):
    """One named state of a function. ``form``: see ``EntryState``. ``lifetime``: ``None``: for ever."""

    form: str | None
    lifetime: Lifetime | None = None

    @abstractmethod
    def discard(self) -> None:
        """Forget what the batch has changed."""

    @abstractmethod
    def write_back(self) -> None:
        """Called at the end of each batch."""


class ValueState(Kept):
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


class Expiring(ABC):
    """What the states whose values expire have in common."""

    def __init__(self, lifetime: Lifetime, queue: RemovalQueue) -> None:
        self.life = lifetime
        self.queue = queue

    @abstractmethod
    def looked_at(self, due: Sequence[Due]) -> None:
        """The turn of some names in the queue has come: remove what has expired, and queue the others again."""

    @abstractmethod
    def key_of(self, name: bytes) -> bytes:
        """The key that a name in the queue belongs to."""

    def expire(self, budget: int) -> None:
        """Remove what has expired: some ``budget`` values. Between two batches."""
        now_ms = self.life.clock.now()
        if now_ms is not None:
            for due in self.queue.take(now_ms, budget):
                self.looked_at(due)

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
        gone = [name for name, record in mine.items() if self.life.is_over(record[0])]
        return gone, {name: record for name, record in mine.items() if not self.life.is_over(record[0])}

    def _sift(self, due: Sequence[Due], state: ObjectStateLike) -> None:
        """``looked_at`` where each value is an object of ``state``."""
        gone, rest = self._judge(due, state)
        if gone:
            state.delete_many(gone)
        if rest:
            again_ms = self.life.expiry()
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


class ExpiringValue(ValueState, Expiring):
    """A ``ValueState`` whose values expire after they were put."""

    form = VALUE_FORM

    def __init__(self, context: CurrentKey, state: ObjectStateLike, lifetime: Lifetime, queue: RemovalQueue) -> None:
        ValueState.__init__(self, context, state)
        Expiring.__init__(self, lifetime, queue)
        self.lifetime = lifetime
        self._records: list[Any] = []
        self._expiries: dict[int, int] = {}

    @override
    def _read(self, keys: list[bytes]) -> list[Any]:
        self._records = self._state.get_many(keys)
        over = self.life.is_over
        self._expiries = {}
        return [None if record is None or over(record[0]) else record[2] for record in self._records]

    @override
    def get(self, default: Any = None) -> Any:
        self._loaded()
        code = self._context.code
        record = self._records[code]
        expiry = self._expiries.get(code, None if record is None else record[0])
        if expiry is None or self.life.is_over(expiry):  # time may have passed within the batch: timers fire
            return default
        return super().get(default)

    @override
    def put(self, value: Any) -> None:
        super().put(value)
        self._expiries[self._context.code] = self.life.expiry()

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


class _Entries(Kept):
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


class MapState(_Entries):
    """One named map of the current key: of keys as in ``map_keys``, to anything that can be pickled, ``None``
    included."""

    form: str | None = MAP_FORM

    def __init__(self, context: CurrentKey, state: EntryStateLike) -> None:
        super().__init__(context, state)
        self._changes: dict[bytes, dict[bytes, Any]] = {}

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of ``key``, a fresh copy; ``default`` without an entry. Raises ``TypeError`` for a key of another
        type."""
        found = self._found(key)
        return default if found is _GONE else found

    def contains(self, key: Any) -> bool:
        """Whether there is an entry for ``key``."""
        return self._found(key) is not _GONE

    def put(self, key: Any, value: Any) -> None:
        """Keep ``value`` for ``key``, as it is now. Raises what pickle raises, and ``TypeError``."""
        owner = self._owner()
        self._changes.setdefault(owner, {})[key_bytes(key)] = self._made(value)

    def remove(self, key: Any) -> None:
        """Remove the entry of ``key``; no error without one."""
        self._changes.setdefault(self._owner(), {})[key_bytes(key)] = _GONE

    def clear(self) -> None:
        """Remove all entries, one by one."""
        owner = self._owner()
        changes = self._changes.setdefault(owner, {})
        changes.update(dict.fromkeys([name for name, _ in self._state.entries(owner)], _GONE))
        changes.update(dict.fromkeys(changes, _GONE))

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return next(self._shown(), None) is None

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Keys and values, by the type of the key, then ascending (``map_keys``)."""
        return self._during_call((key_value(name), value) for name, value in self._shown())

    def keys(self) -> Iterator[Any]:
        """As ``items``."""
        return self._during_call(key_value(name) for name, _ in self._shown())

    def values(self) -> Iterator[Any]:
        """As ``items``."""
        return self._during_call(value for _, value in self._shown())

    __iter__ = keys
    __contains__ = contains
    __getitem__ = get
    __setitem__ = put

    def _made(self, value: Any) -> Any:
        return pack(value)

    def _value(self, made: Any) -> Any:
        """The value of a change; ``_GONE`` if it is none, or has expired."""
        return _GONE if made is _GONE else unpack(made)

    def _found(self, key: Any) -> Any:
        owner, name = self._owner(), key_bytes(key)
        changes = self._changes.get(owner)
        if changes is not None and name in changes:
            return self._value(changes[name])
        (record,) = self._state.get_many([owner + name])
        return _GONE if record is None or self._is_over(record) else record[-1]

    def _shown(self) -> Iterator[tuple[bytes, Any]]:
        owner = self._owner()
        changes = dict(self._changes.get(owner, {}))
        stored = self._state.entries(owner)
        return self._merged(sorted(changes), changes, stored)

    def _merged(
        self, names: list[bytes], changes: dict[bytes, Any], stored: Iterator[tuple[bytes, Any]]
    ) -> Iterator[tuple[bytes, Any]]:
        at = 0
        for name, record in stored:
            while at < len(names) and names[at] < name:
                yield from self._as_shown(names[at], changes[names[at]])
                at += 1
            if name not in changes and not self._is_over(record):
                yield name, record[-1]
        for name in names[at:]:
            yield from self._as_shown(name, changes[name])

    def _as_shown(self, name: bytes, made: Any) -> Iterator[tuple[bytes, Any]]:
        value = self._value(made)
        if value is not _GONE:
            yield name, value

    @override
    def discard(self) -> None:
        self._changes, self._batch = {}, None

    @override
    def write_back(self) -> None:
        changes, self._changes, self._batch = self._changes, {}, None
        names = [owner + name for owner, mine in changes.items() for name in mine]
        if names:
            self._write(names, [made for mine in changes.values() for made in mine.values()])

    def _write(self, names: list[bytes], made: list[Any]) -> None:
        self._state.put_many(names, [None if each is _GONE else (unpack(each),) for each in made])


class ExpiringMap(MapState, Expiring):
    """A ``MapState`` whose entries expire after they were put, each by itself."""

    form = MAP_FORM + WITH_TTL

    def __init__(self, context: CurrentKey, state: EntryStateLike, lifetime: Lifetime, queue: RemovalQueue) -> None:
        MapState.__init__(self, context, state)
        Expiring.__init__(self, lifetime, queue)
        self.lifetime = lifetime

    @override
    def _made(self, value: Any) -> Any:
        return self.life.expiry(), pack(value)

    @override
    def _value(self, made: Any) -> Any:
        return _GONE if made is _GONE or self.life.is_over(made[0]) else unpack(made[1])

    @override
    def _write(self, names: list[bytes], made: list[Any]) -> None:
        kept = [at for at, each in enumerate(made) if each is not _GONE]
        stored = self._state.get_many([names[at] for at in kept])
        times = self._queued([names[at] for at in kept], stored, [made[at][0] for at in kept])
        records: list[Any] = [None] * len(names)
        for at, queued in zip(kept, times, strict=True):
            records[at] = (made[at][0], queued, unpack(made[at][1]))
        self._state.put_many(names, records)

    @override
    def looked_at(self, due: Sequence[Due]) -> None:
        self._sift(due, self._state)

    @override
    def key_of(self, name: bytes) -> bytes:
        return owner_key(name)


@dataclass(slots=True)
class _Change:
    """What a batch does to a list. Elements ``first`` to ``end`` - 1 are stored, and stay; those before are removed,
    from ``stored_first`` on. ``queued``: ``None``: the list is not in the removal queue."""

    stored_first: int
    first: int
    end: int
    queued: int | None
    exists: bool
    appended: list[Any] = field(default_factory=list)


class ListState(_Entries):
    """One named list of the current key, of anything that can be pickled, ``None`` included."""

    form: str | None = LIST_FORM

    def __init__(self, context: CurrentKey, state: EntryStateLike) -> None:
        super().__init__(context, state)
        self._lists: dict[bytes, _Change] = {}
        self._changed: dict[bytes, None] = {}

    def append(self, value: Any) -> None:
        """Put ``value``, as it is now, behind the others. Raises what pickle raises."""
        self.extend([value])

    def extend(self, values: Iterable[Any]) -> None:
        """As ``append`` for each."""
        owner, made = self._owner(), [self._made(value) for value in values]
        if made:
            self._list(owner).appended += made
            self._changed[owner] = None

    def put(self, values: Iterable[Any]) -> None:
        """Replace all elements."""
        values = list(values)
        self.clear()
        self.extend(values)

    def clear(self) -> None:
        """Remove all elements, one by one."""
        owner = self._owner()
        change = self._list(owner)
        if change.exists or change.appended:
            change.first, change.appended = change.end, []
            self._changed[owner] = None

    def get(self) -> list[Any]:
        """All elements, fresh copies."""
        return list(self._elements())

    def __iter__(self) -> Iterator[Any]:
        """The elements, some hundred read at a time."""
        return self._during_call(self._elements())

    def is_empty(self) -> bool:
        """Whether there is no element."""
        return next(self._elements(), _GONE) is _GONE

    def __len__(self) -> int:
        if self.lifetime is None:
            change = self._list(self._owner())
            return change.end - change.first + len(change.appended)
        return sum(1 for _ in self._elements())

    def __bool__(self) -> bool:
        return not self.is_empty()

    def _made(self, value: Any) -> Any:
        return (pack(value),)

    def _list(self, owner: bytes) -> _Change:
        change = self._lists.get(owner)
        if change is None:
            (header,) = self._state.get_many([owner + _HEADER])
            first, end, *queued = (0, 0) if header is None else header
            queued_ms = queued[0] if queued else None
            change = self._lists[owner] = _Change(first, first, end, queued_ms, header is not None)
        return change

    def _elements(self) -> Iterator[Any]:
        owner = self._owner()
        change = self._list(owner)
        first, end, appended = change.first, change.end, list(change.appended)
        return self._read(owner, first, end, appended)

    def _read(self, owner: bytes, first: int, end: int, appended: list[Any]) -> Iterator[Any]:
        for start in range(first, end, READ_ELEMENTS):
            for record in self._state.get_many(_numbered(owner, start, min(end, start + READ_ELEMENTS))):
                if not self._is_over(record):
                    yield record[-1]
        for made in appended:
            if not self._is_over(made):
                yield unpack(made[-1])

    @override
    def discard(self) -> None:
        self._lists, self._changed, self._batch = {}, {}, None

    @override
    def write_back(self) -> None:
        names: list[bytes] = []
        values: list[Any] = []
        gone: list[bytes] = []
        for owner in self._changed:
            change = self._lists[owner]
            gone += _numbered(owner, change.stored_first, change.first)
            end = change.end + len(change.appended)
            if end > change.first:
                names += [owner + _HEADER, *_numbered(owner, change.end, end)]
                values += [self._header(owner, change, end), *map(_unpacked, change.appended)]
            elif change.exists:
                gone.append(owner + _HEADER)
        self.discard()
        if gone:
            self._state.delete_many(gone)
        if names:
            self._state.put_many(names, values)

    def _header(self, owner: bytes, change: _Change, end: int) -> tuple[int, ...]:
        return change.first, end


class ExpiringList(ListState, Expiring):
    """A ``ListState`` whose elements expire after they were appended, each by itself."""

    form = LIST_FORM + WITH_TTL

    def __init__(self, context: CurrentKey, state: EntryStateLike, lifetime: Lifetime, queue: RemovalQueue) -> None:
        ListState.__init__(self, context, state)
        Expiring.__init__(self, lifetime, queue)
        self.lifetime = lifetime

    @override
    def _made(self, value: Any) -> Any:
        return self.life.expiry(), pack(value)

    @override
    def _header(self, owner: bytes, change: _Change, end: int) -> tuple[int, ...]:
        queued_ms = change.queued
        if queued_ms is None:
            queued_ms = change.appended[0][0]
            self.queue.add([owner], queued_ms)
        return change.first, end, queued_ms

    @override
    def looked_at(self, due: Sequence[Due]) -> None:
        wanted = list(dict.fromkeys(name for _, name in due))
        headers = dict(zip(wanted, self._state.get_many(wanted), strict=True))
        for owner in dict.fromkeys(name for at_ms, name in due if headers[name] and headers[name][2] == at_ms):
            first, end, _ = headers[owner]
            live = self._first_live(owner, first, end)
            if live > first:
                self._state.delete_many(_numbered(owner, first, live))
            if live == end:
                self._state.delete_many([owner])
                continue
            again_ms = self.life.expiry()
            self._state.put_many([owner], [(live, end, again_ms)])
            self.queue.add([owner], again_ms)

    def _first_live(self, owner: bytes, first: int, end: int) -> int:
        """The number of the first element that has not expired; ``end`` if all have."""
        for start in range(first, end, READ_ELEMENTS):
            names = _numbered(owner, start, min(end, start + READ_ELEMENTS))
            for at, record in enumerate(self._state.get_many(names), start):
                if not self._is_over(record):
                    return at
        return end

    @override
    def key_of(self, name: bytes) -> bytes:
        return owner_key(name)


def _unpacked(made: Sequence[Any]) -> tuple[Any, ...]:
    return (*made[:-1], unpack(made[-1]))


def _numbered(owner: bytes, first: int, end: int) -> list[bytes]:
    return [owner + _NUMBER.pack(number) for number in range(first, end)]


def element_number(name: bytes) -> int | None:
    """The number of an element of a list, from what follows the owner in its name; ``None``: it is no element."""
    return None if name == _HEADER else int(_NUMBER.unpack(name)[0])


def _outside() -> RuntimeError:
    return RuntimeError("state of a key can be used only while the function it was given to runs")
