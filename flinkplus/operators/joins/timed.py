"""The join of two keyed streams: of all rows, or of rows whose event times are within bounds.

Each row is paired, when it comes, with the rows of the other side that have come before. Each side is kept until no
row to come can match it. Then, where the join keeps unmatched rows of that side, those that nothing has matched come
out with nulls for the other side. So the output is appended to, and nothing of it is ever taken back.

Rules and invariants:

- which pairs come out depends on the keys and times of rows alone, not on the order in which they come, except for rows
  that are late: rows before the watermark, and rows without a time, are dropped and counted (``TimeMetrics``);
- the order of pairs is that of ``pairing``. Unmatched rows that are given at one watermark have no defined order;
- a row whose key, or whose own bound, is null matches nothing; unmatched, it comes out at once;
- rows are kept in shelves by the last time of the other side that they match: ``number * 64 + k`` is the shelf of the
  ``2**k`` ms from ``number * 2**k``. ``k`` grows with the distance of a row's bounds, so there are few shelves;
- without bounds there are no times: all rows are in one shelf (``FOR_EVER``), and unmatched rows come out at the end;
- a stored row has a number and says whether it was matched when it came; numbers of those matched later are kept apart,
  by shelf (``#left matched``), since stored rows never change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from flinkplus.operators.base.operator import (
    Inherited,
    JsonValue,
    OperatorContext,
    common_watermark,
)
from flinkplus.operators.event_time.event_time import TimeMetrics, event_times
from flinkplus.operators.joins.bounds import Bounds, OwnTimes
from flinkplus.operators.joins.paged import TIME, Integers
from flinkplus.operators.joins.pairing import FROM, UNTIL, Pairs, Probes, pairs_of
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
from flinkplus.operators.joins.stored_rows import NUMBERS, StoredNumbers, StoredRows, state_schemas
from flinkplus.operators.joins.two_sided import TwoSidedInstance, TwoSidedJoin
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS, START_OF_TIME_MS

SHELVES_IN_AN_INTERVAL = 4
LEAST_SHELF_MS = 1_000
FOR_EVER = 63
"""The shelf of rows that are never dropped."""
_LOG_SHELVES = 64
NUMBER, MATCHED = "#number", "#matched"
_OWN_BOUNDS = (pa.field(FROM, pa.int64()), pa.field(UNTIL, pa.int64()))
_OWN_MATCHES = (pa.field(NUMBER, pa.uint64()), pa.field(MATCHED, pa.bool_()))
_NEVER, _ALWAYS = START_OF_TIME_MS // 2, END_OF_TIME_MS // 2

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class KeyedJoin(TwoSidedJoin):
    """The join of rows whose times are within ``bounds``."""

    bounds: Bounds
    left_inputs: int = 1
    how: How = "inner"

    @property
    def is_timed(self) -> bool:
        """Whether rows have event times."""
        return self.left.column is not None

    @property
    def hears_watermarks(self) -> bool:  # type: ignore[override]
        return self.is_timed

    @property
    def stops_watermarks(self) -> bool:  # type: ignore[override]
        return not self.is_timed

    @property
    def holds_rows(self) -> bool:  # type: ignore[override]
        return self.how != "inner"

    def check(self) -> None:
        """Raises ``ConfigurationError`` when the two sides cannot be joined so."""
        check_sides(self.name, self.left, self.right, self.how)
        self.bounds.check(self.name, (self.left.schema, self.right.schema))

    def kept(self, which: int) -> pa.Schema:
        """What is kept of the rows of a side."""
        own = _OWN_BOUNDS if any(part is not None for part in self.bounds.of(which)) else ()
        matches = _OWN_MATCHES if KEEPS[self.how][which] else ()
        return pa.schema([*LEAD, *own, *matches, *self.sides[which].kept_columns])

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return PairedRows(self.name, self.left, self.right, self.how).schema

    @override
    def page_schemas(self, schema: pa.Schema) -> dict[str, pa.Schema]:
        found: dict[str, pa.Schema] = {}
        for which, side in enumerate(SIDES):
            found |= state_schemas(f"#{side}", self.kept(which))
            if KEEPS[self.how][which]:
                found |= state_schemas(f"#{side} matched", NUMBERS)
        return found

    @property
    @override
    def settings(self) -> dict[str, Any]:
        return {**self.bounds.settings, "how": self.how}

    @override
    def create(self, ctx: OperatorContext) -> JoinInstance:
        return JoinInstance(self, ctx)


def shelf_end_ms(shelf: int) -> int:
    """The last time of a shelf."""
    bits = shelf % _LOG_SHELVES
    return END_OF_TIME_MS - 1 if bits == FOR_EVER else ((shelf // _LOG_SHELVES + 1) << bits) - 1


def _shelf_start_ms(shelf: int) -> int:
    bits = shelf % _LOG_SHELVES
    return _NEVER if bits == FOR_EVER else (shelf // _LOG_SHELVES) << bits


def _shelf_bits(distances: Integers) -> Integers:
    """The ``k`` of shelves of rows whose bounds are so far apart: a quarter of that at least, and less than a half."""
    least = np.maximum(distances // SHELVES_IN_AN_INTERVAL, LEAST_SHELF_MS)
    return np.frexp(least - 0.5)[1].astype(np.int64)  # the next power of two


class _Side:
    """One side in one subtask. ``name``: ``left`` or ``right``."""

    def __init__(self, join: KeyedJoin, which: int, ctx: OperatorContext) -> None:
        self.side = join.sides[which]
        self._kept = join.kept(which)
        self.columns = len(self._kept) - len(self.side.schema)
        self.ahead_ms, self.behind_ms = join.bounds.ahead_ms(which), join.bounds.behind_ms(which)
        own = join.bounds.of(which)
        self._has_upper = own[1] is not None
        self._own = OwnTimes(own, ctx, self.side.schema) if FROM in self._kept.names else None
        name, state = f"{ctx.operator}#{SIDES[which]}", ctx.keyed_state()
        self.rows = StoredRows(state, name, self._kept)
        self.matches = StoredNumbers(state, f"{name} matched") if KEEPS[join.how][which] else None
        self._next = 0

    def user_columns(self, rows: pa.RecordBatch) -> Sequence[pa.Array]:
        """The columns of the rows themselves, of stored rows."""
        columns: Sequence[pa.Array] = rows.columns[self.columns :]
        return columns

    def probes(self, batch: pa.RecordBatch, times: Integers) -> tuple[Probes, Flags]:
        """Rows as they are stored, with the times that they match; and which of them can match anything."""
        count = batch.num_rows
        earliest = np.full(count, _NEVER) if self.behind_ms is None else times - self.behind_ms
        latest = np.full(count, _ALWAYS) if self.ahead_ms is None else times + self.ahead_ms
        able = without_null_keys(batch, self.side)
        more: list[pa.Array] = []
        if self._own is not None:
            earliest, latest, known = self._own.of(batch, earliest, latest)
            able = able & known
            more = [pa.array(earliest), pa.array(latest)]
        if self.matches is not None:
            numbers = np.arange(self._next, self._next + count, dtype=np.uint64)
            self._next += count
            more += [pa.array(numbers), pa.array(np.zeros(count, np.bool_))]
        columns = stored_columns(batch, times, self.side, more)
        return Probes(pa.RecordBatch.from_arrays(columns, schema=self._kept), earliest, latest), able

    def shelves_of(self, probes: Probes) -> Integers:
        """The shelf of each row."""
        if self.ahead_ms is None and not self._has_upper:
            return np.full(len(probes.latest), FOR_EVER)
        distances = np.maximum(probes.latest - probes.earliest, 0)
        bits = _shelf_bits(np.where(probes.earliest <= _NEVER // 2, 0, distances))
        return (probes.latest >> bits) * _LOG_SHELVES + bits

    def keep(self, probes: Probes, chosen: Flags, matched: Flags) -> None:
        """Store the ``chosen`` rows. ``matched``: which rows were matched."""
        if not chosen.any():
            return
        rows, shelves = probes.rows, self.shelves_of(probes)
        if self.matches is not None:
            at = rows.schema.get_field_index(MATCHED)
            rows = rows.set_column(at, rows.schema.field(at), pa.array(matched))
        order = np.lexsort((rows.column(TIME).to_numpy(), rows.column(0).to_numpy(), shelves))  # stable
        order = order[chosen[order]]
        bounds = np.flatnonzero(np.diff(shelves[order])) + 1
        for mine in np.split(order, bounds):
            self.rows.add(int(shelves[mine[0]]), rows.take(pa.array(mine)))

    def near(self, probes: Probes, other: _Side) -> list[int]:
        """The shelves of this side that may have rows that match ``probes``, which are rows of the other side."""
        times = probes.rows.column(TIME).to_numpy()
        first, last = int(times.min()), _ALWAYS
        if self.ahead_ms is not None and other.ahead_ms is not None:
            last = int(times.max()) + other.ahead_ms + self.ahead_ms
        return [shelf for shelf in self.rows if shelf_end_ms(shelf) >= first and _shelf_start_ms(shelf) <= last]

    def mark(self, pairs: Pairs) -> None:
        """Rows of this side were matched."""
        if self.matches is None:
            return
        new = ~pairs.others.column(MATCHED).to_numpy(zero_copy_only=False)
        numbers = pairs.others.column(NUMBER).to_numpy()
        for shelf in np.unique(pairs.shelves[new]).tolist():
            self.matches.add_numbers(shelf, numbers[new & (pairs.shelves == shelf)])

    def matched(self, shelf: int, rows: pa.RecordBatch) -> Flags:
        """Which stored rows of a shelf were matched."""
        assert self.matches is not None
        flags: Flags = rows.column(MATCHED).to_numpy(zero_copy_only=False)
        return flags | self.matches.has(shelf, rows.column(NUMBER).to_numpy())

    def needed(self, rows: pa.RecordBatch, watermark_ms: int | None) -> Flags:
        """Which stored rows some row to come may match."""
        needed = np.ones(rows.num_rows, np.bool_)
        if watermark_ms is not None and self.ahead_ms is not None:
            needed = needed & (rows.column(TIME).to_numpy() + self.ahead_ms >= watermark_ms)
        if watermark_ms is not None and self._has_upper:
            needed = needed & (rows.column(UNTIL).to_numpy() >= watermark_ms)
        return needed

    def over(self, watermark_ms: int) -> list[int]:
        """The shelves that no row to come can match."""
        return [shelf for shelf in self.rows if shelf_end_ms(shelf) < watermark_ms]

    def drop(self, shelf: int) -> None:
        """Remove a shelf."""
        self.rows.drop(shelf)
        if self.matches is not None:
            self.matches.drop(shelf)

    def snapshot(self) -> dict[str, Any]:
        """The index, as JSON."""
        state: dict[str, Any] = {"rows": self.rows.snapshot(), "next": self._next}
        if self.matches is not None:
            state["matched"] = self.matches.snapshot()
        return state

    def restore(self, saved: Any) -> None:
        """Restore the result of ``snapshot``."""
        self.rows.restore(saved["rows"])
        self._next = saved["next"]
        if self.matches is not None:
            self.matches.restore(saved["matched"])

    def inherit(self, former: _Side, owned: Inherited) -> None:
        """Take the rows of another subtask's side that belong here, with numbers of this side."""
        for shelf in former.rows:
            for rows in former.rows.pieces(shelf):
                mine = owned.owned(rows.column(1).to_pylist())
                if not mine.any():
                    continue
                known = rows if self.matches is None else self._renumbered(rows, former.matched(shelf, rows))
                self.rows.add(shelf, known.filter(pa.array(mine)))

    def _renumbered(self, rows: pa.RecordBatch, matched: Flags) -> pa.RecordBatch:
        numbers = np.arange(self._next, self._next + rows.num_rows, dtype=np.uint64)
        self._next += rows.num_rows
        for name, values in ((NUMBER, numbers), (MATCHED, matched)):
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, rows.schema.field(at), pa.array(values))
        return rows


class JoinInstance(TwoSidedInstance):
    def __init__(self, descriptor: KeyedJoin, ctx: OperatorContext) -> None:
        super().__init__(ctx)
        self._descriptor = descriptor
        self._metrics = TimeMetrics(ctx) if descriptor.is_timed else None
        self._sides = _Side(descriptor, 0, ctx), _Side(descriptor, 1, ctx)
        self._output = PairedRows(descriptor.name, *descriptor.sides, descriptor.how)
        self._watermark_ms: int | None = None
        ahead = [side.ahead_ms for side in self._sides if side.ahead_ms is not None]
        self._behind_ms = max([*ahead, 0])
        if descriptor.how != "inner" and ahead:
            self._behind_ms += 1 << int(_shelf_bits(np.array([max(sum(ahead), 0)]))[0])

    @property
    @override
    def behind_ms(self) -> int:
        return self._behind_ms

    @override
    def process_input(self, position: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        which = int(position >= self._descriptor.left_inputs)
        mine, other = self._sides[which], self._sides[1 - which]
        batch, times = self._in_time(batch, mine.side.column)
        if not batch.num_rows:
            return
        probes, able = mine.probes(batch, times)
        matched = np.zeros(batch.num_rows, np.bool_)
        for pairs in pairs_of(_only(probes, able), other.rows, other.near(probes, mine)):
            at = pairs.at if able.all() else np.flatnonzero(able)[pairs.at]
            matched[at] = True
            other.mark(pairs)
            yield from self._paired(which, probes.rows.take(pa.array(at)), pairs.others)
        kept = able
        if self._watermark_ms is not None:
            kept = able & (probes.latest >= self._watermark_ms)
        mine.keep(probes, kept, matched)
        if mine.matches is not None:
            yield from self._padded(which, probes.rows, ~kept & ~matched)

    def _in_time(self, batch: pa.RecordBatch, column: str | None) -> tuple[pa.RecordBatch, Integers]:
        """The rows that are not late, with their times."""
        if column is None or self._metrics is None:
            return batch, np.zeros(batch.num_rows, np.int64)
        times = event_times(batch, column)
        wanted = self._metrics.in_time(times, self._watermark_ms)
        return (batch, times.ms) if wanted.all() else (batch.filter(pa.array(wanted)), times.ms[wanted])

    def _paired(self, which: int, own: pa.RecordBatch, others: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        mine, theirs = self._sides[which].user_columns(own), self._sides[1 - which].user_columns(others)
        yield from self._output.pairs(*((mine, theirs) if which == 0 else (theirs, mine)))

    def _padded(self, which: int, rows: pa.RecordBatch, chosen: Flags) -> Iterator[pa.RecordBatch]:
        """Rows of one side that nothing matches."""
        if chosen.any():
            yield from self._output.padded(which, self._sides[which].user_columns(rows.filter(pa.array(chosen))))

    @override
    def on_watermark(self, watermark_ms: int) -> Iterator[pa.RecordBatch]:
        # after a change of the parallelism event time may be behind for a while; what was dropped stays over
        self._watermark_ms = watermark_ms if self._watermark_ms is None else max(self._watermark_ms, watermark_ms)
        for which, side in enumerate(self._sides):
            for shelf in side.over(self._watermark_ms):
                if side.matches is not None:
                    for rows in side.rows.pieces(shelf):
                        yield from self._padded(which, rows, ~side.matched(shelf, rows))
                side.drop(shelf)

    @override
    def pending(self, which: int) -> Iterator[tuple[pa.Array, Sequence[pa.Array]]]:
        """The keys and columns of the rows of one side that others may still match."""
        side = self._sides[which]
        for shelf in side.rows:
            for rows in side.rows.pieces(shelf):
                held = rows.filter(pa.array(side.needed(rows, self._watermark_ms)))
                yield held.column(1), side.user_columns(held)

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        left, right = (side.snapshot() for side in self._sides)
        return {"watermark_ms": self._watermark_ms, "left": left, "right": right}

    @override
    def restore(self, state: JsonValue) -> None:
        assert isinstance(state, dict)
        self._watermark_ms = state["watermark_ms"]
        for side, name in zip(self._sides, SIDES, strict=True):
            side.restore(state[name])

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        self._watermark_ms = common_watermark(parts)
        for part in parts:
            if part.keyed is None:
                continue
            former = JoinInstance(self._descriptor, replace(self._ctx, state=part.keyed, metrics={}))
            former.restore(part.state)
            for mine, theirs in zip(self._sides, former._sides, strict=True):
                mine.inherit(theirs, part)


def _only(probes: Probes, chosen: Flags) -> Probes:
    if chosen.all():
        return probes
    return Probes(probes.rows.filter(pa.array(chosen)), probes.earliest[chosen], probes.latest[chosen])
