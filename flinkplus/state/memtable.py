"""Keyed numbers in memory over RocksDB (objects: ``objects``), and what both kinds of table have in common.

Rules:
- a table belongs to one thread, the subtask's; only ``FrozenPart.sorted_chunks`` and ``release`` may run in another;
- an entry is *dirty* (changed since the last freeze), *frozen* (in a part that is not yet in RocksDB) or *clean*
  (RocksDB has it); only clean entries are evicted, so what memory does not have, RocksDB has;
- freezing copies what the part needs without a Python loop over keys; what is frozen never changes;
- parts are released in the order they were frozen, or thawed together: their entries are dirty again, with the
  newest value.

Invariants: ``NumberState`` counts a key from its first look-up on (its value is then 0 and dirty) until it is removed;
``live_keys`` is the number of keys that exist, in memory or only in RocksDB; it is an estimate, and may be any number,
until it is ``counted``. The row of a removed key stays, marked,
until RocksDB has the removal and the row is evicted, or the key is looked up again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.errors import ConfigurationError, CorruptState
from flinkplus.protocol.snapshot.clips import Clip
from flinkplus.protocol.vocabulary.key_groups import DEFAULT_MAX_PARALLELISM
from flinkplus.state.hashing import GROUP_BYTES, group_of, in_groups
from flinkplus.state.keytable import FREE, Hashes, KeyTable, Rows
from flinkplus.state.numberindex import NumberIndex
from flinkplus.state.sst_format import WRITE_CHUNK_ENTRIES, Chunk, give_way
from flinkplus.state.store import EVERYTHING, KeyRanges, SubtaskStore

Dtype = Literal["int64", "float64"]
Numbers = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]

VALUE_BYTES = 8
ZERO_VALUE = bytes(VALUE_BYTES)
CONVERT_CHUNK_ENTRIES = 8192
DEFAULT_MAX_ENTRIES = 500_000
FEW_KEYS = 128
FEW_LOOKED_UP = 24
"""Maximum number of keys whose groups are computed one by one."""


def state_prefix(name: str) -> bytes:
    """The key prefix of a state: its length-prefixed name, so that no prefix begins another and none begins with 0."""
    encoded = name.encode()
    if not 0 < len(encoded) < 256:
        raise ConfigurationError(f"a state's name must have 1 to 255 bytes in UTF-8, not {len(encoded)}: {name!r}")
    return bytes([len(encoded)]) + encoded


def counted_keys(clip: Clip | None) -> KeyRanges:
    """The keys of a state file that count, as the store has them."""
    if clip is None:
        return EVERYTHING
    return tuple(
        (prefix + first.to_bytes(GROUP_BYTES, "big"), prefix + end.to_bytes(GROUP_BYTES, "big"))
        for prefix in sorted(map(state_prefix, clip.states))
        for first, end in clip.groups
    )


class FrozenPart(Protocol):
    """What one state contributes to a snapshot. ``prefix`` orders parts; ``number`` counts a state's parts, from 1."""

    prefix: bytes
    number: int
    entries: int

    def sorted_chunks(self) -> Iterator[Chunk]:
        """Keys with their prefix, ascending, with values (None: deleted). Runs off the subtask's thread."""

    def release(self) -> None:
        """The part is in RocksDB now. Runs off the subtask's thread."""


def key_array(keys: Sequence[bytes]) -> pa.LargeBinaryArray:
    """``keys`` as an Arrow array, converted in pieces: the conversion holds the interpreter lock."""
    pieces = []
    for start in range(0, len(keys), CONVERT_CHUNK_ENTRIES):
        pieces.append(pa.array(keys[start : start + CONVERT_CHUNK_ENTRIES], pa.large_binary()))
        give_way()
    return cast(pa.LargeBinaryArray, pa.concat_arrays(pieces) if pieces else pa.array([], pa.large_binary()))


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """How a state's keys are stored: behind ``prefix`` and their key group, so that the keys of a range of groups are
    a range of the store.

    ``max_parallelism``: number of key groups; ``None``: pages of the subtask, which have no group.
    """

    prefix: bytes
    max_parallelism: int | None

    def stored(self, keys: Sequence[bytes]) -> list[bytes]:
        """The keys as the store has them."""
        if self.max_parallelism is None:
            return [self.prefix + key for key in keys]
        if len(keys) <= FEW_LOOKED_UP:
            groups = self.max_parallelism
            return [self.prefix + group_of(key, groups).to_bytes(GROUP_BYTES, "big") + key for key in keys]
        grouped = in_groups(pa.array(keys, pa.large_binary()), self.max_parallelism)
        return cast("list[bytes]", self._prefixed(grouped).to_numpy(zero_copy_only=False).tolist())

    def sorted(self, keys: pa.LargeBinaryArray) -> tuple[pa.Array, Rows]:
        """The same, sorted, and the order (without the interpreter lock)."""
        grouped = keys if self.max_parallelism is None else in_groups(keys, self.max_parallelism)
        order = pc.array_sort_indices(grouped)
        return self._prefixed(grouped.take(order)), order.to_numpy().astype(np.int64)

    def _prefixed(self, keys: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        none, first = pa.scalar(b"", pa.large_binary()), pa.scalar(self.prefix, pa.large_binary())
        return pc.binary_join_element_wise(first, keys, none)


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """The keys of rows 0 to n-1, prefixed and sorted, and the row of each; as long as rows are numbered so."""

    numbering: object
    keys: pa.Array
    rows: Rows


class NumberPart:
    """A frozen part of a ``NumberState``: rows into the key array as it was, and a copy of their values.

    Sorting is most of the work of writing, and the keys of a part are often those of the part before: the order of a
    part that had every row is kept, and serves later ones that have no newer rows.
    """

    def __init__(
        self, state: NumberState, number: int, table: KeyTable, rows: Rows, values: Numbers, removed: Flags | None
    ) -> None:
        self.prefix = state.prefix
        self.number = number
        self.entries = len(rows)
        self._state = state
        self._keys, self._numbering = table.keys, table.numbering
        self._rows, self._values, self._removed = rows, values, removed

    def sorted_chunks(self) -> Iterator[Chunk]:
        known = self._state.key_order
        if known is None or known.numbering is not self._numbering or self._rows[-1] >= len(known.rows):
            keys, order = self._sort()
        else:
            keys, order = self._select(known)
        packed = self._values[order].astype(self._values.dtype.newbyteorder("<"), copy=False).view(f"V{VALUE_BYTES}")
        gone = None if self._removed is None else self._removed[order]
        for start in range(0, self.entries, WRITE_CHUNK_ENTRIES):
            stop = start + WRITE_CHUNK_ENTRIES
            values: list[bytes | None] = packed[start:stop].tolist()
            if gone is not None:
                for position in np.flatnonzero(gone[start:stop]).tolist():
                    values[position] = None
            yield keys[start:stop].to_pylist(), values

    def _sort(self) -> tuple[pa.Array, Rows]:
        keys, order = self._state.layout.sorted(key_array(cast("Sequence[bytes]", self._keys[self._rows])))
        if self._rows[-1] + 1 == self.entries:
            self._state.key_order = KeyOrder(self._numbering, keys, order)
        return keys, order

    def _select(self, known: KeyOrder) -> tuple[pa.Array, Rows]:
        """The order of this part's rows, taken from a known order of all rows."""
        position = np.full(len(known.rows), -1)
        position[self._rows] = np.arange(self.entries)
        order = position[known.rows]
        if self.entries == len(known.rows):
            return known.keys, order
        mine = order >= 0
        return known.keys.filter(pa.array(mine)), order[mine]

    def release(self) -> None:
        self._state.note_released(self.number)


class NumberState:
    """A number for each key: a table of key -> row, and columns by row.

    ``max_entries`` bounds what is kept in memory (soft by what one batch brings in). Row numbers are valid until the
    next call of ``indices`` or ``indices_of``.
    """

    kind = "number"

    def __init__(
        self,
        store: SubtaskStore,
        prefix: bytes,
        dtype: Dtype,
        max_entries: int = DEFAULT_MAX_ENTRIES,
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
    ) -> None:
        if dtype not in ("int64", "float64"):
            raise ConfigurationError(f"a number state holds int64 or float64, not {dtype!r}")
        self.prefix = prefix
        self.layout = KeyLayout(prefix, max_parallelism)
        self.dtype: Dtype = dtype
        self.max_entries = max_entries
        self._parts = 0
        self._released = 0
        self.rebind(store, 0)

    def rebind(self, store: SubtaskStore, live_keys: int, counted: bool = True) -> None:
        """Forget everything in memory and read from ``store``, which has ``live_keys`` keys of this state, or, if not
        ``counted``, about so many."""
        self._store = store
        self.live_keys = live_keys
        self.counted = counted
        self._table = KeyTable()
        self._index = NumberIndex(self._table.numbering)
        self._values: Numbers = np.zeros(self._table.capacity, self.dtype)
        self._dirty = np.zeros(self._table.capacity, np.bool_)
        self._removed = np.zeros(self._table.capacity, np.bool_)
        self._removed_rows = 0
        self._used = np.zeros(self._table.capacity, np.int64)
        self._part = np.zeros(self._table.capacity, np.int64)  # the last part that froze the row
        self._tick = 0
        self._released = self._parts
        self.key_order: KeyOrder | None = None  # made and used by the writer of parts, one at a time
        self._futile_at = -1  # parts released when eviction last freed too little: no use before the next one

    # -- the hot path ---------------------------------------------------------------------------------------------

    def indices(self, keys: list[bytes]) -> Rows:
        """Row of each key (shape ``len(keys)``); new keys begin at 0. About 0.2 us a key in memory."""
        self._evict_if_full()
        return self._use(self._rows(keys))

    def indices_of(
        self, numbers: npt.NDArray[np.int64], encode: Callable[[npt.NDArray[np.int64]], list[bytes]]
    ) -> Rows:
        """As ``indices``, for keys that are whole numbers: much cheaper. Numbers may repeat.

        ``encode``: makes their keys; different numbers have different ones.
        """
        self._evict_if_full()
        if self._index.numbering is not self._table.numbering:
            self._index = NumberIndex(self._table.numbering)
        rows = self._index.find(numbers)
        if len(rows) and rows.min() == FREE:
            fresh = np.unique(numbers[rows == FREE])
            self._index.add(fresh, self._rows(encode(fresh)))
            rows = self._index.find(numbers)
        return self._use(rows)

    def _evict_if_full(self) -> None:
        if len(self._table) > self.max_entries:
            self._evict()

    def _rows(self, keys: list[bytes]) -> Rows:
        if len(keys) <= FEW_KEYS:
            return self._few_rows(keys)
        rows, hashes = self._table.find(keys)
        if rows.min() < 0:
            self._load(keys, rows, hashes)
        return rows

    def _use(self, rows: Rows) -> Rows:
        if self._removed_rows:
            self._bring_back(rows)
        self._tick += 1
        self._used[rows] = self._tick
        return rows

    def gather(self, rows: Rows) -> Numbers:
        """The values at ``rows`` (a copy)."""
        return self._values[rows]

    def scatter(self, rows: Rows, values: npt.ArrayLike) -> None:
        """Set the values at ``rows``; they are part of the next snapshot."""
        self._values[rows] = values
        self._dirty[rows] = True

    def remove(self, rows: Rows) -> None:
        """The keys of these distinct rows are no more; looked up again, they begin at 0."""
        self._values[rows] = 0
        self._dirty[rows] = self._removed[rows] = True
        self._used[rows] = 0  # the first to be evicted
        self._removed_rows += len(rows)
        self.live_keys -= len(rows)

    def _bring_back(self, rows: Rows) -> None:
        """Keys that were removed are there again."""
        back = rows[self._removed[rows]]
        if len(back):
            back = np.unique(back)
            self._removed[back], self._dirty[back] = False, True
            self._removed_rows -= len(back)
            self.live_keys += len(back)

    def _few_rows(self, keys: list[bytes]) -> Rows:
        rows = self._table.find_few(keys)
        if FREE in rows:
            fresh = list(dict.fromkeys(key for key, row in zip(keys, rows, strict=True) if row == FREE))
            self._add(fresh, self._table.hashes_of(fresh))
            rows = self._table.find_few(keys)
        return np.array(rows, np.int64)

    def _load(self, keys: list[bytes], rows: Rows, hashes: Hashes) -> None:
        """Give a row to each key that has none (``rows`` < 0), with its value from RocksDB."""
        positions = np.flatnonzero(rows == FREE)
        fresh: dict[bytes, int] = {}
        firsts = [position for position in positions.tolist() if fresh.setdefault(keys[position], position) == position]
        first = self._add(list(fresh), hashes[firsts])
        stop = len(self._table)
        if len(firsts) == len(positions):
            rows[positions] = np.arange(first, stop)
        else:
            row_of = dict(zip(fresh, range(first, stop), strict=True))
            rows[positions] = [row_of[keys[position]] for position in positions.tolist()]

    def _add(self, keys: list[bytes], hashes: Hashes) -> int:
        """Rows for ``keys``, which are distinct and have none, with their values from RocksDB; returns the first."""
        found = self._stored(keys)
        first = self._table.insert(keys, hashes)
        stop = len(self._table)
        self._reserve(self._table.capacity)
        if found is None:
            self._values[first:stop] = 0
            self._dirty[first:stop] = True
        else:
            self._values[first:stop], self._dirty[first:stop] = found
        self._part[first:stop] = 0
        self.live_keys += int(np.count_nonzero(self._dirty[first:stop]))
        return first

    def _stored(self, keys: list[bytes]) -> tuple[Numbers, npt.NDArray[np.bool_]] | None:
        """Values of ``keys`` in RocksDB and which of them it does not have; None: it can have none of them."""
        if self._knows_all:  # no need to ask
            return None
        found = self._store.get_many(self.layout.stored(keys))
        packed = b"".join([ZERO_VALUE if value is None else value for value in found])
        if len(packed) != VALUE_BYTES * len(found):
            raise CorruptState(f"state {self.prefix[1:]!r} holds values that are no {self.dtype} numbers")
        absent = np.fromiter((value is None for value in found), np.bool_, len(found))
        return np.frombuffer(packed, np.dtype(self.dtype).newbyteorder("<")), absent

    def _reserve(self, capacity: int) -> None:
        """Make the columns as long as the table's."""
        more = capacity - len(self._values)
        if more > 0:
            self._values = np.concatenate([self._values, np.zeros(more, self.dtype)])
            self._dirty = np.concatenate([self._dirty, np.zeros(more, np.bool_)])
            self._removed = np.concatenate([self._removed, np.zeros(more, np.bool_)])
            self._used = np.concatenate([self._used, np.zeros(more, np.int64)])
            self._part = np.concatenate([self._part, np.zeros(more, np.int64)])

    # -- eviction -------------------------------------------------------------------------------------------------

    @property
    def needs_spill(self) -> bool:
        """More entries than allowed, and too few of them clean: an extra part must go to RocksDB first."""
        return len(self._table) > self.max_entries and self._futile_at == self._released

    def _evict(self) -> None:
        """Down to half of ``max_entries``: clean rows go, those not used for longest first."""
        released = self._released
        if self._futile_at == released:
            return
        count = len(self._table)
        clean = np.flatnonzero(~self._dirty[:count] & (self._part[:count] <= released))
        excess = count - self.max_entries // 2
        if len(clean) > excess:
            clean = clean[np.argpartition(self._used[clean], excess)[:excess]]
        if count - len(clean) > self.max_entries * 3 // 4:
            self._futile_at = released
        if len(clean) == 0:
            return
        keep = np.ones(count, np.bool_)
        keep[clean] = False
        self._table.keep(keep)
        self._values, self._dirty = self._values[:count][keep], self._dirty[:count][keep]
        self._used, self._part = self._used[:count][keep], self._part[:count][keep]
        self._removed = self._removed[:count][keep]
        self._removed_rows = int(np.count_nonzero(self._removed))

    # -- snapshots ------------------------------------------------------------------------------------------------

    @property
    def dirty_entries(self) -> int:
        return int(np.count_nonzero(self._dirty[: len(self._table)]))

    @property
    def _knows_all(self) -> bool:
        """Memory holds every key there is."""
        return self.counted and len(self._table) - self._removed_rows == self.live_keys

    @property
    def covers_all(self) -> bool:
        """Whether memory holds every key, and no removal that RocksDB has to apply."""
        if not self._knows_all:
            return False
        count = len(self._table)
        return not self._removed_rows or not bool((self._dirty[:count] & self._removed[:count]).any())

    def freeze(self, full: bool = False) -> NumberPart | None:
        """A part of all dirty entries (``full``: of all entries), clean from now on; None when there are none."""
        count = len(self._table)
        if not full:
            rows = np.flatnonzero(self._dirty[:count])
        else:
            rows = np.flatnonzero(~self._removed[:count]) if self._removed_rows else np.arange(count)
        if len(rows) == 0:
            return None
        self._parts += 1
        self._dirty[:count] = False
        self._part[rows] = self._parts
        removed = self._removed[rows] if self._removed_rows and not full else None
        return NumberPart(self, self._parts, self._table, rows, self._values[rows], removed)

    def note_released(self, number: int) -> None:
        """Part ``number`` is in RocksDB (any thread)."""
        self._released = max(self._released, number)

    def thaw(self, parts: Sequence[FrozenPart]) -> None:
        """Parts that could not be written: their entries are dirty again."""
        count = len(self._table)
        self._dirty[:count] |= np.isin(self._part[:count], [part.number for part in parts])
        self._released = self._parts
