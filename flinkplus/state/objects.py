"""Keyed state of any picklable objects, in memory over RocksDB.

Rules (besides those of ``memtable``):
- values of immutable types are kept as they are, others as their pickle, made when they are put: changing an object
  without putting it changes nothing;
- ``None`` means absent, so putting ``None`` deletes;
- a stored value is one format byte and a pickle of protocol 5;
- memory is bounded by entries. A page counts as one for each ``PAGE_ENTRY_BYTES``, so that few large ones are many;
- the newest value of a key is the first found in: dirty, frozen parts (newest first), young cache, old cache, RocksDB.
  When the young cache is full it becomes the old one, and the content of the old one is only in RocksDB.
"""

from __future__ import annotations

import datetime
import decimal
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from flinkplus.errors import CorruptState
from flinkplus.protocol.vocabulary.key_groups import DEFAULT_MAX_PARALLELISM
from flinkplus.state.memtable import DEFAULT_MAX_ENTRIES, FrozenPart, KeyLayout, key_array
from flinkplus.state.sst_format import Chunk
from flinkplus.state.store import SubtaskStore

PICKLE_PROTOCOL = 5
OBJECTS, PAGES, ENTRIES = "object", "pages", "entries"
PICKLE_FORMAT = b"\x01"
PICKLE_CHUNK_ENTRIES = 256
PAGE_ENTRY_BYTES = 256
_ATOMS = frozenset(
    {int, float, complex, str, bytes, bool, decimal.Decimal, datetime.date, datetime.timedelta, type(None)}
)


class _Absent:
    """The value of a key that does not exist."""

    def __repr__(self) -> str:
        return "ABSENT"


class _Packed(bytes):
    """The pickle of a value that a function could change later."""


ABSENT = _Absent()
_UNKNOWN = object()


def pack(value: object) -> object:
    kind = type(value)
    if kind in _ATOMS or (kind is tuple and _ATOMS.issuperset(map(type, value))):  # type: ignore[call-overload]
        return value
    return _Packed(pickle.dumps(value, PICKLE_PROTOCOL))


def unpack(kept: object) -> object | None:
    if kept is ABSENT:
        return None
    return pickle.loads(kept) if type(kept) is _Packed else kept


def _encode(kept: object) -> bytes | None:
    if kept is ABSENT:
        return None
    return PICKLE_FORMAT + (kept if type(kept) is _Packed else pickle.dumps(kept, PICKLE_PROTOCOL))


def decode(stored: bytes | None) -> object:
    """What is kept for a stored value. Raises ``CorruptState`` for one of an unknown format."""
    if stored is None:
        return ABSENT
    if stored[:1] != PICKLE_FORMAT:
        raise CorruptState(f"a stored object has format {stored[:1]!r}, known is {PICKLE_FORMAT!r}")
    value = pickle.loads(stored[1:])
    packed = pack(value)
    return packed if packed is value else _Packed(stored[1:])


class ObjectPart:
    """A frozen part of an ``ObjectState``."""

    def __init__(self, layout: KeyLayout, number: int, kept: dict[bytes, object]) -> None:
        self.prefix = layout.prefix
        self._layout = layout
        self.number = number
        self.entries = len(kept)
        self.kept = kept
        self.released = False
        self.further = 0
        """What its entries count for besides their number."""

    def sorted_chunks(self) -> Iterator[Chunk]:
        values = list(self.kept.values())
        keys, order = self._layout.sorted(key_array(list(self.kept)))
        for start in range(0, self.entries, PICKLE_CHUNK_ENTRIES):
            stop = start + PICKLE_CHUNK_ENTRIES
            yield keys[start:stop].to_pylist(), [_encode(values[row]) for row in order[start:stop].tolist()]

    def release(self) -> None:
        self.released = True


class ObjectState:
    """An object for each key. ``max_entries`` bounds what is kept in memory (soft by what one batch brings in).

    ``max_parallelism``: number of key groups. ``None``: its keys are names of *pages*, each of which holds rows of many
    keys; at another parallelism only the operator that made the pages can divide them.
    ``form``: how the operator makes its objects, where it has several ways; ``None``: as they are.
    """

    def __init__(
        self,
        store: SubtaskStore,
        prefix: bytes,
        max_entries: int = DEFAULT_MAX_ENTRIES,
        max_parallelism: int | None = DEFAULT_MAX_PARALLELISM,
        form: str | None = None,
    ) -> None:
        self.prefix = prefix
        self.kind = OBJECTS if max_parallelism is not None else PAGES
        self.form = form
        self._layout = KeyLayout(prefix, max_parallelism)
        self.max_entries = max_entries
        self._parts = 0
        self.rebind(store, 0)

    def rebind(self, store: SubtaskStore, live_keys: int, counted: bool = True) -> None:
        """As ``NumberState.rebind``."""
        self._store = store
        self.live_keys = live_keys
        self.counted = counted
        self._dirty: dict[bytes, object] = {}
        self._dirty_has_absent = False
        self._frozen: list[ObjectPart] = []
        self._young: dict[bytes, object] = {}
        self._old: dict[bytes, object] = {}
        self._dirty_further = self._young_further = 0

    def _further(self, kept: object) -> int:
        """What an entry counts for besides itself."""
        return len(kept) // PAGE_ENTRY_BYTES if self.kind == PAGES and isinstance(kept, bytes) else 0

    def get_many(self, keys: Sequence[bytes]) -> list[Any]:
        """The object of each key, or None; fresh copies where they can be changed, to be put back."""
        return [unpack(kept) for kept in self._find(keys)]

    def put_many(self, keys: Sequence[bytes], values: Sequence[object]) -> None:
        """Set the object of each key (None deletes it). Raises what pickle raises, and then changes nothing."""
        packed = [ABSENT if value is None else pack(value) for value in values]
        self._set(keys, packed)

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Remove keys; those that do not exist are ignored."""
        self._set(keys, [ABSENT] * len(keys))

    def _set(self, keys: Sequence[bytes], packed: list[object]) -> None:
        before = dict(zip(keys, self._find(keys), strict=True))
        after = dict(zip(keys, packed, strict=True))
        for key, kept in after.items():
            existed, exists = before[key] is not ABSENT, kept is not ABSENT
            self.live_keys += exists - existed
            if exists or existed:
                if self.kind == PAGES:
                    self._dirty_further += self._further(kept) - self._further(self._dirty.get(key))
                self._dirty[key] = kept
                self._dirty_has_absent |= not exists

    def _find(self, keys: Sequence[bytes]) -> list[object]:
        """What is kept for each key, in memory or, then cached, in RocksDB."""
        self._settle()
        dirty, young, old = self._dirty, self._young, self._old
        frozen = [part.kept for part in reversed(self._frozen)]
        found: list[object] = []
        missing: dict[bytes, list[int]] = {}
        for key in keys:
            kept = dirty.get(key, _UNKNOWN)
            if kept is _UNKNOWN:
                for table in frozen:
                    kept = table.get(key, _UNKNOWN)
                    if kept is not _UNKNOWN:
                        break
                else:
                    kept = young.get(key, _UNKNOWN)
                    if kept is _UNKNOWN:
                        kept = old.get(key, _UNKNOWN)
                        if kept is _UNKNOWN:
                            missing.setdefault(key, []).append(len(found))
                        else:
                            young[key] = kept
                            self._young_further += self._further(kept)
            found.append(kept)
        if missing:
            self._load(missing, found)
        if len(young) + self._young_further > self.max_entries // 2:
            self._young, self._old, self._young_further = {}, young, 0
        return found

    def _load(self, missing: dict[bytes, list[int]], found: list[object]) -> None:
        stored = self._stored(list(missing))
        for (key, positions), value in zip(missing.items(), stored, strict=True):
            kept = self._young[key] = decode(value)
            self._young_further += self._further(kept)
            for position in positions:
                found[position] = kept

    def _stored(self, keys: list[bytes]) -> list[bytes | None]:
        return [None] * len(keys) if self._store.empty else self._store.get_many(self._layout.stored(keys))

    def _settle(self) -> None:
        """Frozen parts that RocksDB has by now become clean."""
        while self._frozen and self._frozen[0].released:
            part = self._frozen.pop(0)
            self._young.update(part.kept)
            self._young_further += part.further

    @property
    def needs_spill(self) -> bool:
        """More changed entries than allowed: an extra part must go to RocksDB first."""
        waiting = sum(part.entries + part.further for part in self._frozen if not part.released)
        return len(self._dirty) + self._dirty_further + waiting > self.max_entries

    @property
    def dirty_entries(self) -> int:
        return len(self._dirty)

    @property
    def covers_all(self) -> bool:
        """The dirty entries are every key there is."""
        return self.counted and not self._dirty_has_absent and len(self._dirty) == self.live_keys

    def freeze(self, full: bool = False) -> ObjectPart | None:
        """A part of all dirty entries, clean from now on; None without any. ``full``: only if ``covers_all``."""
        if not self._dirty:
            return None
        self._parts += 1
        part = ObjectPart(self._layout, self._parts, self._dirty)
        part.further, self._dirty_further = self._dirty_further, 0
        self._frozen.append(part)
        self._dirty = {}
        self._dirty_has_absent = False
        return part

    def thaw(self, parts: Sequence[FrozenPart]) -> None:
        """Parts that could not be written: their entries are dirty again."""
        self._settle()
        numbers = {part.number for part in parts}
        merged: dict[bytes, object] = {}
        for part in self._frozen:
            if part.number in numbers:
                merged.update(part.kept)
        self._frozen = [part for part in self._frozen if part.number not in numbers]
        merged.update(self._dirty)
        self._dirty = merged
        self._dirty_further = sum(map(self._further, merged.values()))
        self._dirty_has_absent = any(kept is ABSENT for kept in merged.values())
