"""Keyed state of many objects for each key: the elements of a list, the entries of a map.

Rules (besides those of ``objects``):
- each object has a *name*: the bytes of ``owner(key)``, which begin with the key's group, and the operator's own bytes
  behind them. So the objects of a key are a range of the store, and files are divided by group, as those of plain keys;
- objects are read and written one by one. ``entries`` goes through those of one key in the order of their names, some
  hundred at a time, and keeps no iterator of RocksDB while its caller works;
- an iteration shows the state as it was when it began.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from typing_extensions import override

from flinkplus.errors import CorruptState
from flinkplus.protocol.vocabulary.key_groups import DEFAULT_MAX_PARALLELISM
from flinkplus.state.hashing import GROUP_BYTES, group_of
from flinkplus.state.memtable import DEFAULT_MAX_ENTRIES, FrozenPart
from flinkplus.state.objects import ABSENT, ENTRIES, ObjectPart, ObjectState, decode, unpack
from flinkplus.state.store import SubtaskStore

READ_ENTRIES = 512
"""Objects that an iteration reads at once."""
_LENGTH = struct.Struct(">I")
_OWNER_BYTES = GROUP_BYTES + _LENGTH.size
Names = dict[bytes, None]


def owner_name(key: bytes, max_parallelism: int) -> bytes:
    """The first bytes of the names of a key's objects."""
    return group_of(key, max_parallelism).to_bytes(GROUP_BYTES, "big") + _LENGTH.pack(len(key)) + key


def owner_length(name: bytes) -> int:
    """How many bytes of an object's name say whose it is. Raises ``CorruptState``."""
    if len(name) < _OWNER_BYTES:
        raise CorruptState(f"the name of an entry has {len(name)} bytes")
    length = _OWNER_BYTES + _LENGTH.unpack_from(name, GROUP_BYTES)[0]
    if length > len(name):
        raise CorruptState("the name of an entry is shorter than its key")
    return length


def owner_key(name: bytes) -> bytes:
    """The key that an object belongs to. Raises ``CorruptState``."""
    return name[_OWNER_BYTES : owner_length(name)]


def end_of(first: bytes) -> bytes:
    """The first name behind all names that begin with ``first``, which has a byte below 255."""
    whole = first.rstrip(b"\xff")
    return whole[:-1] + bytes([whole[-1] + 1])


class EntryState(ObjectState):
    """Objects by name; see the rules of the module. ``form``: what the operator keeps in them."""

    def __init__(
        self,
        store: SubtaskStore,
        prefix: bytes,
        max_entries: int = DEFAULT_MAX_ENTRIES,
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
        form: str | None = None,
    ) -> None:
        self._groups = max_parallelism
        super().__init__(store, prefix, max_entries, None, form)
        self.kind = ENTRIES

    @override
    def rebind(self, store: SubtaskStore, live_keys: int, counted: bool = True) -> None:
        super().rebind(store, live_keys, counted)
        self._changed: dict[bytes, Names] = {}  # the names of dirty objects, by owner
        self._frozen_names: list[tuple[ObjectPart, dict[bytes, Names]]] = []

    def owner(self, key: bytes) -> bytes:
        """The first bytes of the names of a key's objects."""
        return owner_name(key, self._groups)

    def entries(self, owner: bytes) -> Iterator[tuple[bytes, Any]]:
        """What follows ``owner`` in the name of each object of a key, ascending, and a fresh copy of the object."""
        self._settle()
        changed: dict[bytes, object] = {}
        for part, names in self._frozen_names:
            if part in self._frozen:
                changed.update((name, part.kept[name]) for name in names.get(owner, ()))
        changed.update((name, self._dirty[name]) for name in self._changed.get(owner, ()))
        return self._entries(owner, sorted(changed.items()))

    def _entries(self, owner: bytes, changed: list[tuple[bytes, object]]) -> Iterator[tuple[bytes, Any]]:
        at, start = 0, len(owner)
        for name, stored in self._in_store(owner):
            while at < len(changed) and changed[at][0] < name:
                if changed[at][1] is not ABSENT:
                    yield changed[at][0][start:], unpack(changed[at][1])
                at += 1
            if at < len(changed) and changed[at][0] == name:
                continue
            yield name[start:], unpack(decode(stored))
        for name, kept in changed[at:]:
            if kept is not ABSENT:
                yield name[start:], unpack(kept)

    def _in_store(self, owner: bytes) -> Iterator[tuple[bytes, bytes]]:
        first, end = self.prefix + owner, end_of(self.prefix + owner)
        while True:
            found = list(islice(self._store.items_between(first, end), READ_ENTRIES))
            for name, stored in found:
                yield name[len(self.prefix) :], stored
            if len(found) < READ_ENTRIES:
                return
            first = found[-1][0] + b"\0"

    @override
    def _set(self, keys: Sequence[bytes], packed: list[object]) -> None:
        super()._set(keys, packed)
        for name in keys:
            if name in self._dirty:
                self._changed.setdefault(name[: owner_length(name)], {})[name] = None

    @override
    def freeze(self, full: bool = False) -> ObjectPart | None:
        part = super().freeze(full)
        self._frozen_names = [(old, names) for old, names in self._frozen_names if old in self._frozen]
        if part is not None:
            self._frozen_names.append((part, self._changed))
            self._changed = {}
        return part

    @override
    def thaw(self, parts: Sequence[FrozenPart]) -> None:
        super().thaw(parts)
        self._frozen_names = [(old, names) for old, names in self._frozen_names if old in self._frozen]
        self._changed = {}
        for name in self._dirty:
            self._changed.setdefault(name[: owner_length(name)], {})[name] = None
