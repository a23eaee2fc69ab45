"""Pairs of rows with equal keys: rows that have come, each with the stored rows of the other side that it matches.

Rules and invariants:

- pairs come in the order of the rows that are looked up, and for one of them by the time of the other, then by its
  shelf, then in the order in which these came;
- pairs come ``MAX_PAIRS`` at a time, the last ones fewer: a step that is repeated cuts its output in the same places,
  whatever memory holds. For them about ``MAX_READ_ROWS`` stored rows are read at a time, however many rows a key has;
- a row whose hash is equal and whose key is not is no match.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.operators.joins.paged import Hashes, Integers, StoredRun, times_of
from flinkplus.operators.joins.stored_rows import StoredRows, Wanted, in_order

MAX_PAIRS = 1 << 18
MAX_READ_ROWS = 1 << 18
KEY, FROM, UNTIL = "#key", "#from", "#until"
"""Columns of stored rows: the bytes of the key, and the first and last time of the other side that a row matches."""


@dataclass(frozen=True, slots=True)
class Probes:
    """Rows that are looked up, with the first and last time of the other side that each matches."""

    rows: pa.RecordBatch
    earliest: Integers
    latest: Integers

    @property
    def hashes(self) -> Hashes:
        hashes: Hashes = self.rows.column(0).to_numpy()
        return hashes


@dataclass(frozen=True, slots=True)
class Pairs:
    """Some pairs: the positions of the rows that were looked up, the rows of the other side, and their shelves."""

    at: Integers
    others: pa.RecordBatch
    shelves: Integers

    def slice(self, start: int, end: int) -> Pairs:
        """The pairs from ``start`` to before ``end``."""
        if start == 0 and end == len(self.at):
            return self
        return Pairs(self.at[start:end], self.others.slice(start, end - start), self.shelves[start:end])


@dataclass(frozen=True, slots=True)
class _Place:
    """A part in which the rows ``at`` are looked up."""

    shelf: int
    run: StoredRun
    at: Integers


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows of one shelf, and for each of the rows ``at`` the first one that matches it there and the end."""

    shelf: int
    batch: pa.RecordBatch
    at: Integers
    start: Integers
    end: Integers

    def only(self, first: int, last: int) -> _Found:
        chosen = slice(*np.searchsorted(self.at, [first, last]).tolist())
        return _Found(self.shelf, self.batch, self.at[chosen], self.start[chosen], self.end[chosen])


def pairs_of(probes: Probes, stored: StoredRows, shelves: Sequence[int]) -> Iterator[Pairs]:
    """All pairs of ``probes`` with rows of some shelves, which stay as they are meanwhile."""
    return _evenly(_pairs_as_read(probes, stored, shelves))


def _evenly(pieces: Iterator[Pairs]) -> Iterator[Pairs]:
    """The same pairs in the same order, ``MAX_PAIRS`` at a time."""
    waiting: list[Pairs] = []
    count = 0
    for piece in pieces:
        start, rows = 0, len(piece.at)
        while count + rows - start >= MAX_PAIRS:
            end = start + MAX_PAIRS - count
            yield _together([*waiting, piece.slice(start, end)])
            waiting, count, start = [], 0, end
        if start < rows:
            waiting.append(piece.slice(start, rows))
            count += rows - start
    if waiting:
        yield _together(waiting)


def _together(pieces: Sequence[Pairs]) -> Pairs:
    if len(pieces) == 1:
        return pieces[0]
    at, shelves = (np.concatenate(parts) for parts in zip(*((each.at, each.shelves) for each in pieces), strict=True))
    return Pairs(at, pa.concat_batches([each.others for each in pieces]), shelves)


def _pairs_as_read(probes: Probes, stored: StoredRows, shelves: Sequence[int]) -> Iterator[Pairs]:
    """The pairs, in pieces that depend on what memory holds."""
    places, costs = _places(probes, stored, shelves)
    if not places:
        return
    for first, last in _stretches(costs, MAX_READ_ROWS):
        if costs[first:last].sum() > MAX_READ_ROWS:
            yield from _streamed(probes, places, first)
            continue
        found = list(_found(probes, places, first, last))
        counts = np.zeros(len(costs), np.int64)
        for each in found:
            counts[each.at] += each.end - each.start
        for start, end in _stretches(counts[first:last], MAX_PAIRS):
            if counts[first + start : first + end].sum() > MAX_PAIRS:
                yield from _streamed(probes, places, first + start)
            elif end - start == len(costs):
                yield from _paired(probes, found)
            else:
                yield from _paired(probes, [each.only(first + start, first + end) for each in found])


def _places(probes: Probes, stored: StoredRows, shelves: Sequence[int]) -> tuple[list[_Place], Integers]:
    """Where the rows are looked up, in the order of shelves and of parts; and the rows that are read for each."""
    hashes = probes.hashes
    wanted = Wanted(hashes)
    places: list[_Place] = []
    costs = np.zeros(len(hashes), np.int64)
    for shelf in shelves:
        for run, at in stored.runs(shelf, wanted):
            places.append(_Place(shelf, run, at))
            cost = run.cost(hashes[at])
            if cost is not None:
                costs[at] += cost
    return places, costs


def _stretches(weights: Integers, most: int) -> Iterator[tuple[int, int]]:
    """Stretches of rows whose weights are together at most ``most``, or of one row."""
    ends = weights.cumsum()
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield first, last
        first = last


def _found(probes: Probes, places: Sequence[_Place], first: int, last: int) -> Iterator[_Found]:
    hashes = probes.hashes
    whole = last - first == len(hashes)
    for place in places:
        at = place.at
        if not whole:
            at = at[slice(*np.searchsorted(at, [first, last]).tolist())]
        if not len(at):
            continue
        found = place.run.find(hashes[at], probes.earliest[at], probes.latest[at])
        if found is not None:
            batch, hits, begins, ends = found
            yield _Found(place.shelf, batch, at[hits], begins, ends)


def _paired(probes: Probes, found: Sequence[_Found]) -> Iterator[Pairs]:
    mine: list[Integers] = []
    theirs: list[pa.RecordBatch] = []
    shelves: list[Integers] = []
    for each in found:
        counts = each.end - each.start
        total = int(counts.sum())
        if total:
            offsets = np.arange(total) - np.repeat(counts.cumsum() - counts, counts)
            mine.append(np.repeat(each.at, counts))
            theirs.append(each.batch.take(pa.array(np.repeat(each.start, counts) + offsets)))
            shelves.append(np.full(total, each.shelf))
    if not mine:
        return
    at, others = np.concatenate(mine), theirs[0] if len(theirs) == 1 else pa.concat_batches(theirs)
    of_shelves = np.concatenate(shelves)
    if len(theirs) > 1:
        order = np.lexsort((times_of(others), at))  # stable; one part has them in this order
        at, others, of_shelves = at[order], others.take(pa.array(order)), of_shelves[order]
    yield from _matching(probes, at, others, of_shelves)


def _streamed(probes: Probes, places: Sequence[_Place], row: int) -> Iterator[Pairs]:
    """The pairs of one row that has too many of them, or must read too much, to have all in memory."""
    hashed = probes.hashes[row]
    earliest, latest = int(probes.earliest[row]), int(probes.latest[row])
    mine = [place for place in places if row in place.at]
    for shelf_rows in in_order([_with_shelf(p.shelf, p.run.cursor(hashed, earliest, latest)) for p in mine]):
        others, shelves = shelf_rows.remove_column(shelf_rows.num_columns - 1), shelf_rows.column(-1).to_numpy()
        yield from _matching(probes, np.full(others.num_rows, row), others, shelves)


def _with_shelf(shelf: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    field = pa.field("#shelf", pa.int64())
    for batch in batches:
        numbers = pa.array(np.full(batch.num_rows, shelf))
        yield pa.RecordBatch.from_arrays([*batch.columns, numbers], schema=batch.schema.append(field))


def _matching(probes: Probes, at: Integers, others: pa.RecordBatch, shelves: Integers) -> Iterator[Pairs]:
    """Those of the pairs that have equal keys and match by their times."""
    keys = probes.rows.column(1).take(pa.array(at))
    right = pc.equal(keys, others.column(1)).to_numpy(zero_copy_only=False)
    times = times_of(others)
    right = right & (times >= probes.earliest[at]) & (times <= probes.latest[at])
    if UNTIL in others.schema.names:
        own = times_of(probes.rows)[at]
        right = right & (others.column(FROM).to_numpy() <= own) & (own <= others.column(UNTIL).to_numpy())
    if right.all():
        yield Pairs(at, others, shelves)
    elif right.any():
        kept = pa.array(np.flatnonzero(right))
        yield Pairs(at[right], others.take(kept), shelves[right])
