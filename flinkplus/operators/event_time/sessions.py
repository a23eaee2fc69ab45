"""Sessions: rows of a key, each at most a gap after the one before.

Time is cut in slices that are shorter than the gap. So all rows of a key in one slice belong to one session; what is
kept of them, with the times of the first and the last row, is a *piece*, which lies in the slice of its last row.
Pieces are not joined when they come. When the watermark is so far that no row can continue the pieces of a slice, each
is looked up in the slices behind it, at most a gap ahead. A piece that is continued there moves to that slice; any
other is a session that has ended.

Rules and invariants:

- a session begins with its first row and ends a gap after its last one; rows exactly a gap apart are in one session;
- a row is late when its slice was looked at. A row before the watermark that is not late joins the session that it
  belongs to, if that has not been emitted, and begins one otherwise;
- slices are looked at in ascending order; there are no pieces in slices before;
- sessions are emitted by the slice of their last row, then by the bytes of the key.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.operators.base.operator import Inherited, OperatorContext
from flinkplus.operators.event_time.assigners import Sessions
from flinkplus.operators.event_time.contents import Emission
from flinkplus.operators.event_time.slices import Slices
from flinkplus.operators.event_time.tables import Bundle, KeptTable, SpanTable


class SessionSlices:
    """The pieces of sessions of one operator in one subtask. ``tables``: what is kept besides their times."""

    def __init__(self, ctx: OperatorContext, sessions: Sessions, tables: Sequence[KeptTable]) -> None:
        self._gap_ms = sessions.gap_ms
        self._slice_ms = sessions.slice_ms
        self._reach_ms = sessions.reach_ms
        self._slices = Slices(ctx.keyed_state(), ctx.operator, [SpanTable(), *tables])

    def add(self, bundle: Bundle) -> None:
        """Add rows that are not late."""
        self._slices.add(bundle)

    def ended(self, watermark_ms: int | None) -> Iterator[Emission]:
        """The sessions that have ended when no row before the watermark will follow, which are removed.

        ``None``: all. They come in batches.
        """
        starts = list(self._slices)
        while starts and (watermark_ms is None or starts[0] + self._reach_ms <= watermark_ms):
            start = starts.pop(0)
            pieces = self._slices.take(start)
            near = starts[: bisect_right(starts, start + self._reach_ms + self._slice_ms)]
            target = self._continued(pieces[0], near)
            for at, slice_start in enumerate(near):
                if (target == at).any():
                    self._move(pieces, target == at, slice_start)
            if (target < 0).any():
                first, *tables = _only(pieces, target < 0)
                yield Emission(tables, spans=self._spans(first))

    def each_ended(self) -> Iterator[Emission]:
        """As ``ended``, all, one by one, with their bounds."""
        for emission in self.ended(None):
            assert emission.spans is not None
            for at in range(emission.spans.num_rows):
                spans = emission.spans.slice(at, 1)
                key, start_ms, end_ms = (column[0].as_py() for column in spans.columns)
                tables = [
                    table.filter(pc.equal(table.column(0), pa.scalar(key, pa.binary()))) for table in emission.tables
                ]
                yield Emission(tables, start_ms, end_ms)

    def _continued(self, spans: pa.RecordBatch, near: Sequence[int]) -> np.ndarray:
        """For each piece the position in ``near`` of the first slice with a piece that continues it; -1: none."""
        target = np.full(spans.num_rows, -1)
        if not near:
            return target
        later = [self._slices.read_first(start) for start in near]
        places = pc.index_in(pa.concat_arrays([rows.column(0) for rows in later]), value_set=spans.column(0))
        rows = np.flatnonzero(places.is_valid().to_numpy(zero_copy_only=False))
        found = places.take(pa.array(rows)).to_numpy()
        firsts = np.concatenate([each.column(1).to_numpy() for each in later])[rows]
        slices = np.repeat(np.arange(len(near)), [each.num_rows for each in later])[rows]
        joined = np.flatnonzero(firsts <= spans.column(2).to_numpy()[found] + self._gap_ms)[::-1]
        target[found[joined]] = slices[joined]  # of several slices the first one is written last
        return target

    def _move(self, pieces: Sequence[pa.RecordBatch], moved: np.ndarray, start: int) -> None:
        self._slices.add_rows(start, _only(pieces, moved))

    def _spans(self, pieces: pa.RecordBatch) -> pa.RecordBatch:
        key, first, last = pieces.columns
        ends = pa.array(last.to_numpy() + self._gap_ms)
        return pa.RecordBatch.from_arrays([key, first, ends], names=["key", "start", "end"])

    def snapshot(self) -> list[Any]:
        """The index, as JSON; all rows are then in the state."""
        return self._slices.snapshot()

    def restore(self, saved: Sequence[Any]) -> None:
        """Restore the result of ``snapshot``."""
        self._slices.restore(saved)

    def inherit(self, part: Inherited, saved: Sequence[Any]) -> None:
        """Add the pieces of another subtask that belong here."""
        self._slices.inherit(part, saved)


def _only(pieces: Sequence[pa.RecordBatch], chosen: np.ndarray) -> list[pa.RecordBatch]:
    """The rows of each table for the keys of the ``chosen`` rows of the first."""
    if chosen.all():
        return list(pieces)
    mask, keys = pa.array(chosen), pieces[0].column(0)
    first = pieces[0].filter(mask)
    return [first, *(_with_keys(table, keys, mask, first.column(0)) for table in pieces[1:])]


def _with_keys(table: pa.RecordBatch, keys: pa.Array, mask: pa.Array, chosen: pa.Array) -> pa.RecordBatch:
    """The rows with the keys ``chosen``: those of ``mask``, where the table has one row for each of ``keys``."""
    if table.column(0).equals(keys):
        return table.filter(mask)
    return table.filter(pc.is_in(table.column(0), value_set=chosen))
