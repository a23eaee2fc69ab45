"""Maps of functions: an object for each entry, read and written one by one. Rules: ``kept``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import override

from flinkplus.operators.base.operator import EntryStateLike
from flinkplus.operators.keyed.functions.expiry import Due
from flinkplus.operators.keyed.functions.kept import MAP_FORM, WITH_TTL, CurrentKey, ExpiringEntries, KeptEntries
from flinkplus.operators.keyed.functions.map_keys import key_bytes, key_value
from flinkplus.state.objects import pack, unpack

_GONE = object()


class MapState(KeptEntries):
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

    def __bool__(self) -> bool:
        return not self.is_empty()

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


class ExpiringMap(ExpiringEntries, MapState):
    """A ``MapState`` whose entries expire after they were put, each by itself."""

    form = MAP_FORM + WITH_TTL

    @override
    def _value(self, made: Any) -> Any:
        return _GONE if made is _GONE or self.lifetime.is_over(made[0]) else unpack(made[1])

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
