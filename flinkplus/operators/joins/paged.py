"""Parts of rows that are sorted by a hash, in pages: a look-up of rows that are not in memory reads few of them.

Rules and invariants:

- the first column, ``#hash``, is ascending in each part; within equal hashes the column ``#time`` is, if there is one;
- a part is stored in pages of ``PAGE_ROWS``. Its *fences*, the first hash of each page, are a page of another state;
- what a look-up gives does not depend on what memory holds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from flinkplus.operators.base.operator import KeyedState
from flinkplus.operators.base.parts import Part, Shelves

HASH, TIME = "#hash", "#time"
FENCES = " fences"
FENCE_SCHEMA = pa.schema([pa.field("fence", pa.uint64())])
PAGE_ROWS = 256
PAGES_AT_ONCE = 64
"""Pages that are read together where rows are read in order."""
_PAGE, _FENCE = struct.Struct(">qQI"), struct.Struct(">qQ")
_MOST_PLACES = 1 << 62

Integers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


def times_of(batch: pa.RecordBatch) -> Integers:
    """The times of stored rows; all 0 where rows have none."""
    if TIME not in batch.schema.names:
        return np.zeros(batch.num_rows, np.int64)
    times: Integers = batch.column(TIME).to_numpy()
    return times


def by_hash(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows sorted by hash and time; equal ones stay in order."""
    return rows.take(pa.array(np.lexsort((times_of(rows), rows.column(0).to_numpy()))))  # stable


def merged_by_hash(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of parts, oldest first, as one part."""
    return parts[0] if len(parts) == 1 else by_hash(pa.concat_batches(parts))


@dataclass(frozen=True, slots=True)
class Index:
    """How to find rows in a part: ``place`` rises with the rows, by the number of the hash and then by time.

    ``shift``: times count in multiples of so many powers of two, where their span is too long for whole numbers.
    """

    hashes: Hashes
    place: Integers
    first_ms: int
    span: int
    shift: int

    @staticmethod
    def of(batch: pa.RecordBatch) -> Index:
        """The index of a part with at least one row."""
        hashes, times = batch.column(0).to_numpy(), times_of(batch)
        new = np.concatenate([[False], hashes[1:] != hashes[:-1]])
        starts = np.flatnonzero(np.concatenate([[True], new[1:]]))
        first_ms, shift = int(times.min()), 0
        span = int(times.max()) - first_ms + 1
        while (span >> shift) + 1 > _MOST_PLACES // (len(starts) + 1):
            shift += 1
        span = (span >> shift) + 1
        return Index(hashes[starts], new.cumsum() * span + ((times - first_ms) >> shift), first_ms, span, shift)

    def find(self, hashes: Hashes, earliest: Integers, latest: Integers) -> tuple[Integers, Integers, Integers]:
        """The positions of the hashes that have rows with a time in the bounds; of each the first row and the end.

        With a ``shift``, a few rows outside of the bounds may be among them.
        """
        number = np.searchsorted(self.hashes, hashes)
        known = np.flatnonzero(self.hashes[np.minimum(number, len(self.hashes) - 1)] == hashes)
        if not len(known):
            return known, known, known
        base, beyond = number[known] * self.span, self.first_ms + (self.span << self.shift)
        lowest = np.minimum(np.maximum(earliest[known], self.first_ms), beyond) - self.first_ms
        highest = np.minimum(np.maximum(latest[known], self.first_ms - 1), beyond - 1) - self.first_ms
        start = np.searchsorted(self.place, base + np.minimum(lowest >> self.shift, self.span))
        end = np.searchsorted(self.place, base + np.minimum((highest >> self.shift) + 1, self.span))
        hit = end > start
        return (known, start, end) if hit.all() else (known[hit], start[hit], end[hit])


class PagedShelves(Shelves):
    """Shelves whose parts are sorted by hash and can be read in pages."""

    def __init__(
        self,
        state: KeyedState,
        name: str,
        schema: pa.Schema,
        merge: Callable[[list[pa.RecordBatch]], pa.RecordBatch],
        *,
        kept_rows: int,
        most_rows: int,
    ) -> None:
        super().__init__(state, name, schema, merge, together=2, kept_rows=kept_rows, most_rows=most_rows)
        self._fences = state.page_state(name + FENCES)
        self._new_fences: list[tuple[bytes, bytes]] = []
        self._old_fences: list[bytes] = []

    def runs(self, shelf: int) -> Iterator[StoredRun]:
        """The parts of a shelf, oldest first, for look-ups."""
        for part in self._shelves[shelf]:
            yield StoredRun(self, shelf, part)

    @override
    def _names(self, shelf: int, part: Part) -> list[bytes]:
        return [_PAGE.pack(shelf, part.number, page) for page in range(-(-part.rows // PAGE_ROWS))]

    @override
    def _contents(self, shelf: int, part: Part) -> list[bytes]:
        assert part.batch is not None
        if part.rows > PAGE_ROWS:
            part.fences = part.batch.column(0).to_numpy()[::PAGE_ROWS].copy()
            fences = pa.RecordBatch.from_arrays([pa.array(part.fences)], schema=FENCE_SCHEMA)
            self._new_fences.append((_FENCE.pack(shelf, part.number), fences.serialize().to_pybytes()))
        firsts = range(0, part.rows, PAGE_ROWS)
        return [part.batch.slice(first, PAGE_ROWS).serialize().to_pybytes() for first in firsts]

    @override
    def _read(self, shelf: int, parts: list[Part]) -> list[pa.RecordBatch]:
        return [self._pages(self._names(shelf, part)) for part in parts]

    def _pages(self, names: list[bytes]) -> pa.RecordBatch:
        pages = [pa.ipc.read_record_batch(pa.py_buffer(page), self._schema) for page in self._content.get_many(names)]
        return pages[0] if len(pages) == 1 else pa.concat_batches(pages)

    @override
    def _forget(self, shelf: int, parts: list[Part]) -> None:
        super()._forget(shelf, parts)
        self._old_fences += [_FENCE.pack(shelf, part.number) for part in parts if part.stored and part.rows > PAGE_ROWS]

    @override
    def write_back(self) -> None:
        super().write_back()
        if self._old_fences:
            self._fences.delete_many(self._old_fences)
        if self._new_fences:
            names, contents = zip(*self._new_fences, strict=True)
            self._fences.put_many(list(names), list(contents))
        self._new_fences, self._old_fences = [], []

    @override
    def restore(self, saved: Any) -> None:
        super().restore(saved)
        self._new_fences, self._old_fences = [], []

    def fences_of(self, shelf: int, part: Part) -> Hashes:
        """The first hash of each page of a stored part."""
        if part.fences is None:
            if part.rows <= PAGE_ROWS:
                part.fences = np.zeros(1, np.uint64)
            else:
                (page,) = self._fences.get_many([_FENCE.pack(shelf, part.number)])
                batch = pa.ipc.read_record_batch(pa.py_buffer(page), FENCE_SCHEMA)
                part.fences = batch.column(0).to_numpy().copy()
        return part.fences

    def warm(self, shelf: int, part: Part) -> bool:
        """Keep a part in memory, if there is room; returns whether it is there."""
        if part.batch is None and self._kept + max(part.rows, part.weight) <= self._kept_rows:
            self._batches(shelf, [part])
        return part.batch is not None

    def read_pages(self, shelf: int, part: Part, numbers: Integers) -> pa.RecordBatch:
        """Some pages of a stored part, ascending, as one batch."""
        return self._pages([_PAGE.pack(shelf, part.number, page) for page in numbers.tolist()])


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One part of a shelf, as look-ups see it."""

    shelves: PagedShelves
    shelf: int
    part: Part

    def _pages_of(self, hashes: Hashes) -> tuple[Integers, Integers]:
        """The first and the last page that may have each hash; the last may be before the first: no page has it."""
        fences = self.shelves.fences_of(self.shelf, self.part)
        first = np.maximum(np.searchsorted(fences, hashes, "left") - 1, 0)
        return first, np.searchsorted(fences, hashes, "right") - 1

    def cost(self, hashes: Hashes) -> Integers | None:
        """Rows that are read to look up each hash; ``None``: they are in memory."""
        if self.shelves.warm(self.shelf, self.part):
            return None
        first, last = self._pages_of(hashes)
        return np.maximum(last - first + 1, 0) * PAGE_ROWS

    def find(
        self, hashes: Hashes, earliest: Integers, latest: Integers
    ) -> tuple[pa.RecordBatch, Integers, Integers, Integers] | None:
        """Rows of the part; the positions of the hashes that have some with a time in the bounds; of each of these the
        first row and the end. ``None``: no row matches."""
        part = self.part
        if part.batch is not None:
            batch = part.batch
            if part.derived is None:
                part.derived = Index.of(batch)
            index: Index = part.derived
        else:
            first, last = self._pages_of(hashes)
            counts = np.maximum(last - first + 1, 0)
            total = int(counts.sum())
            if not total:
                return None
            offsets = np.arange(total) - np.repeat(counts.cumsum() - counts, counts)
            batch = self.shelves.read_pages(self.shelf, part, np.unique(np.repeat(first, counts) + offsets))
            index = Index.of(batch)
        at, start, end = index.find(hashes, earliest, latest)
        return (batch, at, start, end) if len(at) else None

    def cursor(self, hashed: np.uint64, earliest: int, latest: int) -> Iterator[pa.RecordBatch]:
        """The rows of one hash with a time in the bounds, in order, some pages at a time."""
        one, low, high = np.array([hashed]), np.array([earliest]), np.array([latest])
        if self.part.batch is not None:
            found = self.find(one, low, high)
            if found is not None:
                batch, _, start, end = found
                step = PAGE_ROWS * PAGES_AT_ONCE
                for at in range(int(start[0]), int(end[0]), step):
                    yield batch.slice(at, min(step, int(end[0]) - at))
            return
        (first,), (last,) = self._pages_of(one)
        for page in range(int(first), int(last) + 1, PAGES_AT_ONCE):
            numbers = np.arange(page, min(page + PAGES_AT_ONCE, int(last) + 1))
            batch = self.shelves.read_pages(self.shelf, self.part, numbers)
            known, start, end = Index.of(batch).find(one, low, high)
            if len(known):
                yield batch.take(pa.array(np.arange(start[0], end[0])))  # without the memory of the other rows

    def pieces(self) -> Iterator[pa.RecordBatch]:
        """All rows, in order, some pages at a time."""
        batch = self.part.batch
        if batch is not None:
            step = PAGE_ROWS * PAGES_AT_ONCE
            for at in range(0, self.part.rows, step):
                yield batch.slice(at, step)
            return
        pages = -(-self.part.rows // PAGE_ROWS)
        for page in range(0, pages, PAGES_AT_ONCE):
            yield self.shelves.read_pages(self.shelf, self.part, np.arange(page, min(page + PAGES_AT_ONCE, pages)))
