"""The rows of one side of a join, as keyed state: by shelf, and within a shelf by hash and time.

A *shelf* holds the rows that are dropped together. New rows of a shelf are gathered in one *cell*; when that has more
than ``GATHERED_ROWS``, they go to the cells behind it, each of which has the hashes of a range. A cell is cut in two
or more when it grows beyond ``CELL_ROWS``; one whose rows have all the same hash is not cut. So no step reads or writes
more than some cells, however many rows a shelf has, and a look-up reads a few pages for each key (``paged``).

Rules and invariants:

- the cells of a shelf depend only on the rows that were added;
- of equal hash and time, rows stay in the order in which they came, over all cells;
- the cells behind the first one have ascending, disjoint ranges of hashes, which together are all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from flinkplus.operators.base.operator import KeyedState
from flinkplus.operators.joins.paged import (
    FENCE_SCHEMA,
    FENCES,
    HASH,
    Hashes,
    Integers,
    PagedShelves,
    StoredRun,
    merged_by_hash,
    times_of,
)

GATHERED_ROWS = 1 << 18
CELL_ROWS = 1 << 16
KEPT_ROWS = 1 << 20
"""Rows that stay in memory besides being in the state."""


def state_schemas(suffix: str, schema: pa.Schema) -> dict[str, pa.Schema]:
    """The schemas of the pages of stored rows, by what follows the operator's name."""
    return {suffix: schema, suffix + FENCES: FENCE_SCHEMA}


class Wanted:
    """Hashes that are looked up in several shelves."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self.every: Integers = np.arange(len(hashes))

    @cached_property
    def order(self) -> Integers:
        """The positions of the hashes, by hash."""
        return np.argsort(self._hashes, kind="stable")

    @cached_property
    def ascending(self) -> Hashes:
        """The hashes, sorted."""
        return self._hashes[self.order]


@dataclass(slots=True)
class _Cell:
    """``first``: the first hash of its range. ``only``: the hash of all its rows, if it is one; otherwise ``None``."""

    number: int
    first: int
    only: int | None


@dataclass(slots=True)
class _Shelf:
    gathered: int | None = None
    cells: list[_Cell] = field(default_factory=list)


class StoredRows:
    """Rows of ``schema``, which begins with the hash. ``name``: of the state."""

    def __init__(self, state: KeyedState, name: str, schema: pa.Schema) -> None:
        self._name, self._schema = name, schema
        self._rows = PagedShelves(state, name, schema, self._merge, kept_rows=KEPT_ROWS, most_rows=CELL_ROWS)
        self._shelves: dict[int, _Shelf] = {}
        self._next = 0

    def __iter__(self) -> Iterator[int]:
        """The numbers of all shelves, ascending."""
        return iter(sorted(self._shelves))

    def __contains__(self, shelf: int) -> bool:
        return shelf in self._shelves

    def add(self, number: int, rows: pa.RecordBatch) -> None:
        """Add rows that are sorted by hash and time, at least one."""
        shelf = self._shelves.setdefault(number, _Shelf())
        if shelf.gathered is None:
            shelf.gathered = self._new()
        self._rows.add(shelf.gathered, rows)
        if self._rows.rows_of(shelf.gathered) > GATHERED_ROWS:
            self._settle(shelf)

    @staticmethod
    def _merge(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        return merged_by_hash(parts)

    def _new(self) -> int:
        self._next += 1
        return self._next - 1

    def _settle(self, shelf: _Shelf) -> None:
        """The gathered rows go to the cells of their hashes."""
        if shelf.gathered is None:
            return
        rows = self._rows.take(shelf.gathered)
        shelf.gathered = None
        if not shelf.cells:
            shelf.cells = [_Cell(self._new(), 0, None)]
        firsts = np.array([cell.first for cell in shelf.cells[1:]], np.uint64)
        bounds = [0, *np.searchsorted(rows.column(0).to_numpy(), firsts).tolist(), rows.num_rows]
        settled: list[_Cell] = []
        for cell, start, end in zip(shelf.cells, bounds, bounds[1:], strict=False):
            settled += self._added(cell, _copied(rows, start, end)) if start < end else [cell]
        shelf.cells = settled

    def _added(self, cell: _Cell, rows: pa.RecordBatch) -> list[_Cell]:
        """The cells in the place of one to which rows were added."""
        if cell.only is not None:
            hashes, only = rows.column(0).to_numpy(), np.uint64(cell.only)
            low, high = int(np.searchsorted(hashes, only, "left")), int(np.searchsorted(hashes, only, "right"))
            if low < high:
                self._rows.add(cell.number, _copied(rows, low, high))
            before = self._cut(rows.slice(0, low), cell.first)
            behind = self._cut(rows.slice(high), None)
            return [*before, _Cell(cell.number, cell.only if before else cell.first, cell.only), *behind]
        if self._rows.rows_of(cell.number) + rows.num_rows <= CELL_ROWS:
            self._rows.add(cell.number, rows)
            return [cell]
        if cell.number in self._rows:
            rows = self._merge([self._rows.take(cell.number), rows])
        return self._cut(rows, cell.first)

    def _cut(self, rows: pa.RecordBatch, first: int | None) -> list[_Cell]:
        """New cells of some rows. ``first``: the first hash of the range of all; ``None``: that of the first row."""
        hashes = rows.column(0).to_numpy()
        if not len(hashes):
            return []
        starts = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]])).tolist()
        cells: list[_Cell] = []
        at = 0
        for start, end in zip(starts, [*starts[1:], len(hashes)], strict=True):
            large = end - start > CELL_ROWS // 2
            if at < start and (large or end - at > CELL_ROWS // 2):
                cells.append(self._cell(rows, at, start))
                at = start
            if large:
                cells.append(self._cell(rows, start, end))
                at = end
        if at < len(hashes):
            cells.append(self._cell(rows, at, len(hashes)))
        if first is not None:
            cells[0].first = first
        return cells

    def _cell(self, rows: pa.RecordBatch, start: int, end: int) -> _Cell:
        hashes = rows.column(0)
        first, last = hashes[start].as_py(), hashes[end - 1].as_py()
        cell = _Cell(self._new(), first, first if first == last else None)
        self._rows.add(cell.number, _copied(rows, start, end))
        return cell

    def runs(self, number: int, wanted: Wanted) -> Iterator[tuple[StoredRun, Integers]]:
        """The parts in which hashes are looked up, with the positions, ascending, of those that may be there.

        Of rows with one hash and time, the parts have them in the order in which they came.
        """
        shelf = self._shelves[number]
        if shelf.cells:
            order, hashes = wanted.order, wanted.ascending
            firsts = np.array([cell.first for cell in shelf.cells[1:]], np.uint64)
            bounds = [0, *np.searchsorted(hashes, firsts).tolist(), len(hashes)]
            for cell, start, end in zip(shelf.cells, bounds, bounds[1:], strict=False):
                if start < end and cell.number in self._rows:
                    mine = np.sort(order[start:end])
                    yield from ((run, mine) for run in self._rows.runs(cell.number))
        if shelf.gathered is not None:
            yield from ((run, wanted.every) for run in self._rows.runs(shelf.gathered))

    def pieces(self, number: int) -> Iterator[pa.RecordBatch]:
        """All rows of a shelf, in batches that are sorted by hash; those of one hash and time in their order."""
        shelf = self._shelves[number]
        numbers = [cell.number for cell in shelf.cells if cell.number in self._rows]
        for cell in [*numbers, *([] if shelf.gathered is None else [shelf.gathered])]:
            for run in self._rows.runs(cell):
                yield from run.pieces()

    def ordered(self, number: int) -> Iterator[pa.RecordBatch]:
        """All rows of a shelf by hash, time and the order in which they came, in batches."""
        shelf = self._shelves[number]
        if not shelf.cells:
            assert shelf.gathered is not None
            yield from self._merged(shelf.gathered)
            return
        self._settle(shelf)
        for cell in shelf.cells:
            if cell.number not in self._rows:
                continue
            if cell.only is None:
                yield from self._merged(cell.number)
            else:
                runs = [run.pieces() for run in self._rows.runs(cell.number)]
                yield from in_order(runs)

    def _merged(self, cell: int) -> Iterator[pa.RecordBatch]:
        if len(list(self._rows.runs(cell))) > 1:
            self._rows.add(cell, self._rows.take(cell))
        for run in self._rows.runs(cell):
            yield from run.pieces()

    def drop(self, number: int) -> None:
        """Remove a shelf, if it is there."""
        shelf = self._shelves.pop(number, None)
        if shelf is None:
            return
        numbers = [cell.number for cell in shelf.cells] + ([] if shelf.gathered is None else [shelf.gathered])
        for cell in numbers:
            if cell in self._rows:
                self._rows.drop(cell)

    def snapshot(self) -> dict[str, Any]:
        """The index, as JSON; all rows are then in the state."""
        shelves = [
            [number, shelf.gathered, [[cell.number, cell.first, cell.only] for cell in shelf.cells]]
            for number, shelf in sorted(self._shelves.items())
        ]
        return {"next": self._next, "shelves": shelves, "rows": self._rows.snapshot()}

    def restore(self, saved: Any) -> None:
        """Restore the result of ``snapshot``."""
        self._next = saved["next"]
        self._shelves = {
            number: _Shelf(gathered, [_Cell(*cell) for cell in cells]) for number, gathered, cells in saved["shelves"]
        }
        self._rows.restore(saved["rows"])

    def former(self, keyed: KeyedState, saved: Any) -> StoredRows:
        """The rows of another subtask, restored at its snapshot, to be read."""
        other = type(self)(keyed, self._name, self._schema)
        other.restore(saved)
        return other


NUMBERS = pa.schema([pa.field(HASH, pa.uint64())])


class StoredNumbers(StoredRows):
    """A set of numbers in each shelf; its rows are the numbers alone, in the place of a hash."""

    def __init__(self, state: KeyedState, name: str, schema: pa.Schema = NUMBERS) -> None:
        super().__init__(state, name, schema)

    @staticmethod
    @override
    def _merge(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Each number once."""
        return _numbers(np.concatenate([part.column(0).to_numpy() for part in parts]))

    def add_numbers(self, shelf: int, numbers: Hashes) -> None:
        """Add numbers, at least one, which may repeat and be there already."""
        self.add(shelf, _numbers(numbers))

    def has(self, shelf: int, numbers: Hashes) -> npt.NDArray[np.bool_]:
        """Which numbers are in a shelf."""
        found = np.zeros(len(numbers), np.bool_)
        if shelf not in self:
            return found
        never = np.zeros(len(numbers), np.int64)
        for run, at in self.runs(shelf, Wanted(numbers)):
            hits = run.find(numbers[at], never[at], never[at])
            if hits is not None:
                found[at[hits[1]]] = True
        return found


def _numbers(numbers: Hashes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(np.unique(numbers))], schema=NUMBERS)


def _copied(rows: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """Some rows, without the memory of the others."""
    return rows.take(pa.array(np.arange(start, end)))


def in_order(runs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """The rows of one hash of several runs by time, of equal times those of an earlier run first, in batches.

    Each run is sorted by time, and is read some pages at a time.
    """
    heads = {at: head for at, run in enumerate(runs) if (head := next(run, None)) is not None}
    while heads:
        end_ms, last = min((int(times_of(head)[-1]), at) for at, head in heads.items())
        taken = []
        for at, head in list(heads.items()):
            rows = int(np.searchsorted(times_of(head), end_ms, "right" if at <= last else "left"))
            if rows:
                taken.append(head.slice(0, rows))
            rest = head.slice(rows) if rows < head.num_rows else next(runs[at], None)
            if rest is None:
                del heads[at]
            else:
                heads[at] = rest
        batch = taken[0] if len(taken) == 1 else pa.concat_batches(taken)
        yield batch.take(pa.array(np.argsort(times_of(batch), kind="stable"))) if len(taken) > 1 else batch
