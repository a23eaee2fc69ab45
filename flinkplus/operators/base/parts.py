"""Batches of rows under a number (such as a window's start), stored as keyed state and merged as their number grows.

A log-structured merge-tree (O'Neil et al., 1996). Each *shelf* holds parts, record batches of one schema, oldest first.
A new part is merged with those before it that are at most twice as large, when there are enough of them. So a shelf has
few parts, and each row is merged a few times only.

Invariants:

- the parts depend only on what was added, never on the times of snapshots or the content of memory;
- new rows are written to the state at a snapshot, or when memory holds ``MAX_WAITING_ROWS`` of them; of the stored rows
  memory keeps ``kept_rows``, in the smallest parts, which are merged next. A row of more than ``ROW_BYTES`` counts as
  several there, so that memory is bounded for wide rows too;
- restoring reads only the index in the snapshot.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkplus.operators.base.operator import KeyedState

MAX_WAITING_ROWS = 65_536
KEPT_ROWS = 65_536
ROW_BYTES = 128
NO_LIMIT = 1 << 62
_NAME = struct.Struct(">qQ")


@dataclass(slots=True)
class Part:
    """``rows`` rows; ``batch``: ``None`` when only the state has them; ``derived``: computed from it, kept with it.

    ``weight``: what it counts for in memory, in rows. ``fences``: see ``PagedShelves``.
    """

    number: int
    rows: int
    batch: pa.RecordBatch | None
    stored: bool = False
    derived: Any = None
    weight: int = 0
    fences: npt.NDArray[np.uint64] | None = None


def _weight(batch: pa.RecordBatch) -> int:
    return max(batch.num_rows, batch.nbytes // ROW_BYTES)


class Shelves:
    """All shelves of one operator in one subtask; ``merge`` makes one batch of several, in order.

    ``together``: minimum number of parts merged at once: high where parts are read once, low for frequent look-ups.
    ``kept_rows``: maximum number of stored rows in memory (default ``KEPT_ROWS``).
    ``most_rows``: parts of more rows are not merged any more.
    """

    def __init__(
        self,
        state: KeyedState,
        name: str,
        schema: pa.Schema,
        merge: Callable[[list[pa.RecordBatch]], pa.RecordBatch],
        *,
        together: int,
        kept_rows: int | None = None,
        most_rows: int = NO_LIMIT,
    ) -> None:
        self._together = together
        self._most_rows = most_rows
        self._kept_rows = KEPT_ROWS if kept_rows is None else kept_rows
        self._content = state.page_state(name)
        self._schema = schema
        self._merge = merge
        self._shelves: dict[int, list[Part]] = {}
        self._next = 0
        self._waiting = self._kept = 0
        self._gone: list[bytes] = []

    def __iter__(self) -> Iterator[int]:
        """The numbers of all shelves, ascending."""
        return iter(sorted(self._shelves))

    def __contains__(self, shelf: int) -> bool:
        return shelf in self._shelves

    def add(self, shelf: int, batch: pa.RecordBatch) -> None:
        """Add a batch, which must not be empty."""
        parts = self._shelves.setdefault(shelf, [])
        while True:
            first = len(parts)
            limit = min(2 * batch.num_rows, self._most_rows)
            while first and parts[first - 1].rows <= limit and batch.num_rows <= self._most_rows:
                first -= 1
            if len(parts) - first < self._together - 1:
                break
            batch = self._merge([*self._batches(shelf, parts[first:]), batch])
            self._forget(shelf, parts[first:])
            del parts[first:]
        parts.append(Part(self._next, batch.num_rows, batch, weight=_weight(batch)))
        self._next += 1
        self._waiting += parts[-1].weight
        if self._waiting > MAX_WAITING_ROWS:
            self.write_back()

    def parts(self, shelf: int) -> list[tuple[Part, pa.RecordBatch]]:
        """All parts of a shelf, oldest first, with their rows."""
        parts = self._shelves[shelf]
        return list(zip(parts, self._batches(shelf, parts), strict=True))

    def rows_of(self, shelf: int) -> int:
        """Number of rows of a shelf, 0 without one."""
        return sum(part.rows for part in self._shelves.get(shelf, ()))

    def _batches(self, shelf: int, parts: list[Part]) -> list[pa.RecordBatch]:
        missing = [part for part in parts if part.batch is None]
        read = dict(zip((part.number for part in missing), self._read(shelf, missing), strict=True)) if missing else {}
        for part in missing:
            part.weight = _weight(read[part.number])
            if self._kept + part.weight <= self._kept_rows:
                part.batch = read[part.number]
                self._kept += part.weight
        return [read[part.number] if part.batch is None else part.batch for part in parts]

    def _names(self, shelf: int, part: Part) -> list[bytes]:
        """The names of the pages that hold a part."""
        return [_NAME.pack(shelf, part.number)]

    def _contents(self, shelf: int, part: Part) -> list[bytes]:
        """The pages of a part that is in memory."""
        assert part.batch is not None
        return [part.batch.serialize().to_pybytes()]

    def _read(self, shelf: int, parts: list[Part]) -> list[pa.RecordBatch]:
        """Some parts, from the state."""
        found = self._content.get_many([name for part in parts for name in self._names(shelf, part)])
        return [pa.ipc.read_record_batch(pa.py_buffer(data), self._schema) for data in found]

    def _forget(self, shelf: int, parts: list[Part]) -> None:
        for part in parts:
            if part.stored:
                self._gone += self._names(shelf, part)
                self._kept -= part.weight if part.batch is not None else 0
            else:
                self._waiting -= part.weight

    def take(self, shelf: int) -> pa.RecordBatch:
        """All rows of a shelf as one batch; removes the shelf."""
        parts = self._shelves[shelf]
        batch = self._merge(self._batches(shelf, parts)) if len(parts) > 1 else self._batches(shelf, parts)[0]
        self.drop(shelf)
        return batch

    def drop(self, shelf: int) -> None:
        """Remove a shelf."""
        self._forget(shelf, self._shelves.pop(shelf))

    def write_back(self) -> None:
        """Write all new rows to the state."""
        names, contents = [], []
        for shelf, parts in self._shelves.items():
            for part in parts:
                if not part.stored:
                    names += self._names(shelf, part)
                    contents += self._contents(shelf, part)
                    part.stored = True
        self._let_go()
        if self._gone:
            self._content.delete_many(self._gone)
        if names:
            self._content.put_many(names, contents)
        self._gone, self._waiting = [], 0

    def _let_go(self) -> None:
        """Keep in memory only the smallest of the stored parts, as many as fit."""
        self._kept = 0
        for part in sorted((p for parts in self._shelves.values() for p in parts), key=lambda p: (p.rows, p.number)):
            if part.batch is not None and self._kept + part.weight <= self._kept_rows:
                self._kept += part.weight
            else:
                part.batch = part.derived = None

    def snapshot(self) -> dict[str, Any]:
        """The index, as JSON; all rows are then in the state."""
        self.write_back()
        shelves = [[shelf, [[p.number, p.rows] for p in self._shelves[shelf]]] for shelf in self]
        return {"next": self._next, "shelves": shelves}

    def inherit(self, other: Shelves, owned: Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]) -> None:
        """Add the rows of another subtask's shelves, restored at a snapshot, that are ``owned``."""
        for shelf in other:
            for _, batch in other.parts(shelf):
                mine = owned(batch)
                if mine.any():
                    self.add(shelf, batch if mine.all() else batch.filter(pa.array(mine)))

    def restore(self, saved: Any) -> None:
        """Restore the result of ``snapshot``."""
        self._next, self._waiting, self._kept, self._gone = saved["next"], 0, 0, []
        self._shelves = {
            shelf: [Part(number, rows, None, stored=True) for number, rows in parts]
            for shelf, parts in saved["shelves"]
        }
