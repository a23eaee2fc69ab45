"""The slices that windows keep: for each table (``tables``) its rows by slice, as keyed state.

Invariant: every slice has rows in the first table, so that this alone says which slices there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.operators.base.operator import Inherited, KeyedState
from flinkplus.operators.base.parts import Shelves
from flinkplus.operators.event_time.tables import Bundle, KeptTable

MERGED_PARTS = 8


class Slices:
    """The slices of one operator in one subtask. ``name``: what the names of its states begin with."""

    def __init__(self, state: KeyedState, name: str, tables: Sequence[KeptTable]) -> None:
        self._name = name
        self._tables = tables
        self._shelves = [
            Shelves(state, name + table.suffix, table.schema, table.merge, together=MERGED_PARTS) for table in tables
        ]

    def __iter__(self) -> Iterator[int]:
        """The starts of all slices, ascending."""
        return iter(self._shelves[0])

    def __contains__(self, start: int) -> bool:
        return start in self._shelves[0]

    def add(self, bundle: Bundle) -> None:
        """Add the rows of a bundle."""
        starts = bundle.slices.tolist()
        for table, shelves in zip(self._tables, self._shelves, strict=True):
            rows, bounds = table.reduced(bundle)
            for start, first, end in zip(starts, bounds, bounds[1:], strict=False):
                if first < end:
                    shelves.add(start, rows.slice(first, end - first))

    def add_rows(self, start: int, rows: Sequence[pa.RecordBatch]) -> None:
        """Add rows of each table to a slice."""
        for batch, shelves in zip(rows, self._shelves, strict=True):
            if batch.num_rows:
                shelves.add(start, batch)

    def read(self, starts: Sequence[int]) -> list[pa.RecordBatch]:
        """The rows of each table in some slices, merged. They stay; each slice has one part then."""
        return self._merged([[self._whole(shelves, start) for start in starts] for shelves in self._shelves])

    def read_first(self, start: int) -> pa.RecordBatch:
        """As ``read``, the first table of one slice."""
        batch = self._whole(self._shelves[0], start)
        assert batch is not None
        return batch

    def read_keys(self, start: int, keys: pa.Array | pa.ChunkedArray) -> list[pa.RecordBatch]:
        """As ``read``, the rows of one slice that have one of ``keys``."""
        return only_keys(self.read([start]), keys)

    def take(self, start: int) -> list[pa.RecordBatch]:
        """The rows of each table in a slice, which is removed."""
        return self._merged([[shelves.take(start) if start in shelves else None] for shelves in self._shelves])

    def drop(self, start: int) -> None:
        """Remove a slice."""
        for shelves in self._shelves:
            if start in shelves:
                shelves.drop(start)

    def merged(self, several: Sequence[Sequence[pa.RecordBatch]]) -> list[pa.RecordBatch]:
        """What ``read`` or ``take`` gave several times, oldest first, as one."""
        return self._merged([[batches[at] for batches in several] for at in range(len(self._tables))])

    def _merged(self, found: list[list[pa.RecordBatch | None]]) -> list[pa.RecordBatch]:
        merged = []
        for table, batches in zip(self._tables, found, strict=True):
            parts = [batch for batch in batches if batch is not None and batch.num_rows]
            if not parts:
                merged.append(pa.RecordBatch.from_pylist([], table.schema))
            else:
                merged.append(table.merge(parts) if len(parts) > 1 else parts[0])
        return merged

    @staticmethod
    def _whole(shelves: Shelves, start: int) -> pa.RecordBatch | None:
        if start not in shelves:
            return None
        parts = shelves.parts(start)
        if len(parts) == 1:
            return parts[0][1]
        batch = shelves.take(start)
        shelves.add(start, batch)
        return batch

    def snapshot(self) -> list[Any]:
        """The index of each table, as JSON; all rows are then in the state."""
        return [shelves.snapshot() for shelves in self._shelves]

    def restore(self, saved: Sequence[Any]) -> None:
        """Restore the result of ``snapshot``."""
        for shelves, index in zip(self._shelves, saved, strict=True):
            shelves.restore(index)

    def inherit(self, part: Inherited, saved: Sequence[Any]) -> None:
        """Add the rows of another subtask that belong here. ``saved``: what its ``snapshot`` gave."""
        if part.keyed is None:
            return
        other = Slices(part.keyed, self._name, self._tables)
        other.restore(saved)
        for mine, theirs in zip(self._shelves, other._shelves, strict=True):
            mine.inherit(theirs, partial(_owned_rows, part))


def only_keys(tables: Sequence[pa.RecordBatch], keys: pa.Array | pa.ChunkedArray) -> list[pa.RecordBatch]:
    """The rows of each table that have one of ``keys``."""
    return [table.filter(pc.is_in(table.column(0), value_set=keys)) for table in tables]


def _owned_rows(part: Inherited, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    return part.owned(rows.column(0).to_pylist())
