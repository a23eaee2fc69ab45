"""A hash table of byte keys with vectorised look-up: key -> row, 0, 1, 2, ... in order of arrival.

Why not a dict: above some 20,000 keys a dict pays four or five dependent cache misses for each key (0.5 us measured
with 100,000 keys). Here the misses of a whole batch overlap (0.2 us), and no integer object is kept for each key.

Rules:
- open addressing with linear probing over the 64-bit hashes of Python (seeded per process, so crafted keys cannot
  pile up in one place); a hash only proposes a row, the key itself decides;
- rows are only added, until ``keep`` renumbers them;
- ``keys`` is never written below ``len(table)`` nor shrunk in place: a caller that holds it has the keys of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.int64]

FREE = -1
FIRST_CAPACITY = 1024
FEW = 16
"""Keys still to be placed below which a step of array operations costs more than finishing them one by one."""
RECENT_KEYS = 1 << 15
"""Keys whose rows are remembered for looking up a few at a time, which a dict does best."""
SLOTS_PER_ROW = 3
"""Minimum number of slots per row, so that few keys need more than one probe."""


class KeyTable:
    """Rows of byte keys. ``hasher`` gives a key's 64-bit hash."""

    def __init__(self, hasher: Callable[[bytes], int] = hash) -> None:
        self._hasher = hasher
        self._count = 0
        self.numbering = object()  # replaced whenever rows are renumbered
        self.keys: npt.NDArray[np.object_] = np.empty(FIRST_CAPACITY, np.object_)
        self._hashes: Hashes = np.zeros(FIRST_CAPACITY, np.int64)
        self._recent: dict[bytes, int] = {}
        self._build_slots()

    def __len__(self) -> int:
        return self._count

    @property
    def capacity(self) -> int:
        """Rows there is room for without new arrays."""
        return len(self.keys)

    def find_few(self, keys: Sequence[bytes]) -> list[int]:
        """The row of each key, ``FREE`` for those without one: as ``find``, one after the other, and faster for few."""
        recent = self._recent
        try:
            return [recent[key] for key in keys]
        except KeyError:
            if len(recent) + len(keys) > RECENT_KEYS:
                recent.clear()
            return [row if (row := recent.get(key, FREE)) != FREE else self._find_one(key) for key in keys]

    def _find_one(self, key: bytes) -> int:
        hashed = self._hasher(key)
        row = self._slots.item(hashed & self._mask)
        if row != FREE and (self._hashes.item(row) != hashed or self.keys[row] != key):
            row = self._probe_on(key, hashed, hashed & self._mask)
        if row != FREE:
            self._recent[self.keys[row]] = row
        return row

    def hashes_of(self, keys: Sequence[bytes]) -> Hashes:
        """The hash of each key, for ``insert``."""
        return np.fromiter(map(self._hasher, keys), np.int64, len(keys))

    def find(self, keys: Sequence[bytes]) -> tuple[Rows, Hashes]:
        """The row of each key, ``FREE`` for those without one, and the hash of each key for ``insert``."""
        hashes = self.hashes_of(keys)
        slots = hashes & self._mask
        rows = self._slots[slots]
        wrong = ((self._hashes[rows] != hashes) & (rows != FREE)).nonzero()[0]
        while len(wrong) > FEW:
            slots[wrong] = (slots[wrong] + 1) & self._mask
            rows[wrong] = proposed = self._slots[slots[wrong]]
            wrong = wrong[(self._hashes[proposed] != hashes[wrong]) & (proposed != FREE)]
        found = rows.astype(np.int64)
        for position in wrong.tolist():
            found[position] = self._probe_on(keys[position], int(hashes[position]), int(slots[position]))
        self._check(keys, found, hashes, slots)
        return found, hashes

    def _check(self, keys: Sequence[bytes], rows: Rows, hashes: Hashes, slots: Hashes) -> None:
        """Equal hashes were found: compare the keys too, and probe further where they differ."""
        hits = (rows != FREE).nonzero()[0]
        all_hit = len(hits) == len(rows)
        wanted = keys if all_hit else [keys[position] for position in hits.tolist()]
        kept = self.keys[rows if all_hit else rows[hits]].tolist()
        if kept == wanted:
            return
        for position, one, other in zip(hits.tolist(), kept, wanted, strict=True):
            if one != other:
                rows[position] = self._probe_on(other, int(hashes[position]), int(slots[position]))

    def _probe_on(self, key: bytes, hashed: int, slot: int) -> int:
        while True:
            slot = (slot + 1) & self._mask
            row = int(self._slots[slot])
            if row == FREE or (self._hashes[row] == hashed and self.keys[row] == key):
                return row

    def insert(self, keys: Sequence[bytes], hashes: Hashes) -> int:
        """Give rows to ``keys``, which are distinct and have none; returns the first, the others follow in order."""
        first, self._count = self._count, self._count + len(keys)
        if self._count > self.capacity:
            more = max(self._count, 2 * self.capacity) - self.capacity
            self.keys = np.concatenate([self.keys, np.empty(more, np.object_)])
            self._hashes = np.concatenate([self._hashes, np.zeros(more, np.int64)])
        self.keys[first : self._count] = keys
        self._hashes[first : self._count] = hashes
        if self._count * SLOTS_PER_ROW > len(self._slots):
            self._build_slots()
        elif len(keys) <= FEW:
            self._place_few(first, hashes)
        else:
            self._place(np.arange(first, self._count))
        return first

    def _place_few(self, first: int, hashes: Hashes) -> None:
        """As ``_place``, one after the other."""
        slots, mask = self._slots, self._mask
        for row, hashed in enumerate(hashes.tolist(), first):
            slot = hashed & mask
            while slots[slot] != FREE:
                slot = (slot + 1) & mask
            slots[slot] = row

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        """Keep the rows where ``mask`` (shape ``len(table)``) is true, renumbered in the same order."""
        kept = np.flatnonzero(mask)
        capacity = max(len(kept), FIRST_CAPACITY)
        keys, hashes = np.empty(capacity, np.object_), np.zeros(capacity, np.int64)
        keys[: len(kept)], hashes[: len(kept)] = self.keys[kept], self._hashes[kept]
        self.keys, self._hashes, self._count = keys, hashes, len(kept)
        self.numbering = object()
        self._recent.clear()
        self._build_slots()

    def _build_slots(self) -> None:
        wanted = max(self._count, FIRST_CAPACITY) * SLOTS_PER_ROW
        self._mask = (1 << wanted.bit_length()) - 1
        self._slots: npt.NDArray[np.int32] = np.full(self._mask + 1, FREE, np.int32)
        self._place(np.arange(self._count))

    def _place(self, rows: Rows) -> None:
        """Put rows into the first free slots at or after their own: all at once, losers of a slot one further."""
        slots = self._hashes[rows] & self._mask
        while len(rows):
            free = self._slots[slots] == FREE
            self._slots[slots[free]] = rows[free]
            lost = self._slots[slots] != rows
            rows, slots = rows[lost], (slots[lost] + 1) & self._mask
