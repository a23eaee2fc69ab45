"""The join of the rows of two keyed streams that are in one window, given when the window ends.

Rules and invariants:

- windows come out by their start. In each, first all pairs: by the slice of the left row, then by the hash of its key,
  its time, and the order in which it came; for one left row by the time of the right, then by the order in which that
  came. Then the rows of the left that nothing matches, and those of the right, in the same order;
- so the output depends on the order of the rows of each side and on event time, not on how input is cut into batches;
- a row is kept once for each slice, however many windows overlap there (``assigners``);
- rows all of whose windows are over, and rows without a time, are dropped and counted (``TimeMetrics``);
- a row with a null in its key matches nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.operator import (
    Inherited,
    JsonValue,
    OperatorContext,
    common_watermark,
)
from flinkplus.operators.event_time.assigners import FixedWindows
from flinkplus.operators.event_time.contents import END, START
from flinkplus.operators.event_time.event_time import TimeMetrics, event_times
from flinkplus.operators.event_time.windows import NO_WINDOW
from flinkplus.operators.joins.paged import Integers, by_hash
from flinkplus.operators.joins.pairing import Pairs, Probes, pairs_of
from flinkplus.operators.joins.sides import (
    KEEPS,
    LEAD,
    SIDES,
    How,
    PairedRows,
    check_sides,
    stored_columns,
    without_null_keys,
)
from flinkplus.operators.joins.stored_rows import StoredRows, state_schemas
from flinkplus.operators.joins.two_sided import TwoSidedInstance, TwoSidedJoin
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS, START_OF_TIME_MS

Flags = npt.NDArray[np.bool_]
_OWN = len(LEAD)
LOOKED_UP_ROWS = 1 << 14


@dataclass(frozen=True)
class WindowJoin(TwoSidedJoin):
    """The join of rows that are in one of the windows of ``assigner``."""

    assigner: FixedWindows
    left_inputs: int = 1
    how: How = "inner"
    hears_watermarks = True
    holds_rows = True

    def check(self) -> None:
        """Raises ``ConfigurationError`` when the two sides cannot be joined so."""
        check_sides(self.name, self.left, self.right, self.how)
        if not isinstance(self.assigner, FixedWindows):
            raise ConfigurationError(
                f"operator {self.name!r}: sessions are not joined, since rows of both sides would have to make one "
                "session; take tumbling or hopping windows, or an interval join"
            )
        self.assigner.check(self.name)

    def joined(self) -> tuple[PairedRows, list[str]]:
        """The output, and which bounds of the window it has: not those that rows have themselves."""
        rows = PairedRows(self.name, self.left, self.right, self.how).schema.names
        names = [name for name in (START, END) if name not in rows]
        time = self.left.schema.field(self.left.column).type
        bound = pa.timestamp("us", time.tz if pa.types.is_timestamp(time) else "UTC")
        further = [pa.field(name, bound) for name in names]
        return PairedRows(self.name, self.left, self.right, self.how, further), names

    def kept(self, which: int) -> pa.Schema:
        """What is kept of the rows of a side."""
        return pa.schema([*LEAD, *self.sides[which].kept_columns])

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return self.joined()[0].schema

    @override
    def page_schemas(self, schema: pa.Schema) -> dict[str, pa.Schema]:
        return state_schemas("#left", self.kept(0)) | state_schemas("#right", self.kept(1))

    @property
    @override
    def settings(self) -> dict[str, Any]:
        return {**self.assigner.settings, "how": self.how}

    @override
    def create(self, ctx: OperatorContext) -> WindowJoinInstance:
        return WindowJoinInstance(self, ctx)


class _Side:
    """One side in one subtask. Shelves are slices, by their start."""

    def __init__(self, join: WindowJoin, which: int, ctx: OperatorContext) -> None:
        self.side = join.sides[which]
        self.keeps = KEEPS[join.how][which]
        self._kept = join.kept(which)
        self.rows = StoredRows(ctx.keyed_state(), f"{ctx.operator}#{SIDES[which]}", self._kept)

    def keep(self, batch: pa.RecordBatch, times: Integers, starts: Integers) -> None:
        """Store rows, by the starts of their slices."""
        if not self.keeps:
            able = without_null_keys(batch, self.side)
            if not able.all():
                batch, times, starts = batch.filter(pa.array(able)), times[able], starts[able]
        if not batch.num_rows:
            return
        rows = pa.RecordBatch.from_arrays(stored_columns(batch, times, self.side), schema=self._kept)
        for start in np.unique(starts).tolist():
            self.rows.add(start, by_hash(rows.filter(pa.array(starts == start))))

    def probes(self, rows: pa.RecordBatch) -> tuple[Probes, Flags]:
        """Stored rows, to be looked up on the other side, and which of them can match anything."""
        columns = pa.RecordBatch.from_arrays(rows.columns[_OWN:], schema=self.side.schema)
        able = without_null_keys(columns, self.side)
        chosen = rows if able.all() else rows.filter(pa.array(able))
        always = np.full(chosen.num_rows, END_OF_TIME_MS)
        return Probes(chosen, np.full(chosen.num_rows, START_OF_TIME_MS), always), able

    def inherit(self, part: Inherited, saved: Any) -> None:
        """Take the rows of another subtask's side that belong here."""
        if part.keyed is None:
            return
        former = self.rows.former(part.keyed, saved)
        for shelf in former:
            for rows in former.pieces(shelf):
                mine = part.owned(rows.column(1).to_pylist())
                if mine.any():
                    self.rows.add(shelf, rows.filter(pa.array(mine)))


@dataclass(frozen=True)
class _Window:
    """A window that ends. ``slices``: of each side, the starts of its slices."""

    start_ms: int
    end_ms: int
    slices: tuple[list[int], list[int]]


class WindowJoinInstance(TwoSidedInstance):
    def __init__(self, descriptor: WindowJoin, ctx: OperatorContext) -> None:
        super().__init__(ctx)
        self._descriptor = descriptor
        self._assigner = descriptor.assigner
        self._metrics = TimeMetrics(ctx)
        self._sides = _Side(descriptor, 0, ctx), _Side(descriptor, 1, ctx)
        self._output, self._bounds = descriptor.joined()
        self._watermark_ms: int | None = None

    @property
    @override
    def behind_ms(self) -> int:
        return self._assigner.behind_ms

    @override
    def process_input(self, position: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        side = self._sides[int(position >= self._descriptor.left_inputs)]
        assert side.side.column is not None
        times = event_times(batch, side.side.column)
        starts = self._assigner.starts(times.ms)
        late = self._metrics.late(times, self._assigner.last_ends(starts), self._watermark_ms, self._watermark_ms)
        wanted = times.known & ~late
        if wanted.all():
            side.keep(batch, times.ms, starts)
        elif wanted.any():
            side.keep(batch.filter(pa.array(wanted)), times.ms[wanted], starts[wanted])
        return iter(())

    @override
    def on_watermark(self, watermark_ms: int) -> Iterator[pa.RecordBatch]:
        before = self._last_ended(self._watermark_ms)
        self._watermark_ms = watermark_ms if self._watermark_ms is None else max(self._watermark_ms, watermark_ms)
        ended = self._last_ended(self._watermark_ms)
        if ended <= before:
            return
        for number in self._due(before, ended):
            yield from self._emitted(self._window(number))
        for side in self._sides:
            for start in list(side.rows):
                if self._windows_of(start)[-1] > ended:
                    break
                side.rows.drop(start)

    def _last_ended(self, at_ms: int | None) -> int:
        return NO_WINDOW if at_ms is None else self._assigner.last_ended(at_ms)

    def _windows_of(self, start: int) -> range:
        return self._assigner.windows_of(self._assigner.number(start))

    def _due(self, before: int, ended: int) -> list[int]:
        """The windows with rows that have ended since."""
        due: set[int] = set()
        for side in self._sides:
            for start in side.rows:
                windows = self._windows_of(start)
                if windows[0] > ended:
                    break
                due.update(windows[bisect_right(windows, before) : bisect_right(windows, ended)])
        return sorted(due)

    def _window(self, number: int) -> _Window:
        start_ms, end_ms = self._assigner.boundary(number), self._assigner.end(number)
        left, right = ([start for start in side.rows if start_ms <= start < end_ms] for side in self._sides)
        return _Window(start_ms, end_ms, (left, right))

    def _emitted(self, window: _Window) -> Iterator[pa.RecordBatch]:
        left, right = self._sides
        flags: list[Flags] = []
        for rows in self._ordered(window, 0):
            matched = np.zeros(rows.num_rows, np.bool_)
            for at, pairs in self._matches(window, 0, rows):
                matched[at] = True
                own, others = rows.take(pa.array(at)), pairs.others
                bounds = self._bounds_of(window, len(at))
                yield from self._output.pairs(own.columns[_OWN:], others.columns[_OWN:], bounds)
            flags.append(matched)
        if left.keeps and flags:
            every, first = np.concatenate(flags), 0
            for rows in self._ordered(window, 0):
                yield from self._padded(window, 0, rows, ~every[first : first + rows.num_rows])
                first += rows.num_rows
        if right.keeps:
            for rows in self._ordered(window, 1):
                matched = np.zeros(rows.num_rows, np.bool_)
                for at, _ in self._matches(window, 1, rows):
                    matched[at] = True
                yield from self._padded(window, 1, rows, ~matched)

    def _ordered(self, window: _Window, which: int) -> Iterator[pa.RecordBatch]:
        """The rows of one side, those of short slices in one batch: each batch is looked up in each slice."""
        rows = self._sides[which].rows
        return _gathered(batch for start in window.slices[which] for batch in rows.ordered(start))

    def _matches(self, window: _Window, which: int, rows: pa.RecordBatch) -> Iterator[tuple[Integers, Pairs]]:
        """The pairs of rows of one side, with the positions of these rows."""
        probes, able = self._sides[which].probes(rows)
        places = np.flatnonzero(able)
        for pairs in pairs_of(probes, self._sides[1 - which].rows, window.slices[1 - which]):
            yield places[pairs.at], pairs

    def _padded(self, window: _Window, which: int, rows: pa.RecordBatch, chosen: Flags) -> Iterator[pa.RecordBatch]:
        if chosen.any():
            found = rows.filter(pa.array(chosen))
            yield from self._output.padded(which, found.columns[_OWN:], self._bounds_of(window, found.num_rows))

    def _bounds_of(self, window: _Window, count: int) -> list[pa.Array]:
        values = {START: window.start_ms, END: window.end_ms}
        return [
            pa.array(np.full(count, values[name] * 1000)).view(self._output.schema.field(name).type)
            for name in self._bounds
        ]

    @override
    def pending(self, which: int) -> Iterator[tuple[pa.Array, Sequence[pa.Array]]]:
        """The keys and columns of the rows of one side that are in a window that has not ended."""
        side = self._sides[which]
        ended = self._last_ended(self._watermark_ms)
        for start in side.rows:
            if self._windows_of(start)[-1] > ended:
                for rows in side.rows.pieces(start):
                    yield rows.column(1), rows.columns[_OWN:]

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        left, right = (side.rows.snapshot() for side in self._sides)
        return {"watermark_ms": self._watermark_ms, "left": left, "right": right}

    @override
    def restore(self, state: JsonValue) -> None:
        assert isinstance(state, dict)
        self._watermark_ms = state["watermark_ms"]
        for side, name in zip(self._sides, SIDES, strict=True):
            side.rows.restore(state[name])

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        self._watermark_ms = common_watermark(parts)
        for part in parts:
            for side, name in zip(self._sides, SIDES, strict=True):
                side.inherit(part, part.state[name])


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at least ``LOOKED_UP_ROWS``; the last one may be smaller."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= LOOKED_UP_ROWS:
            yield pa.concat_batches(waiting)
            waiting, count = [], 0
    if waiting:
        yield pa.concat_batches(waiting)
