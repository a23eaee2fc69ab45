"""The join of two keyed streams by key and event time: rows whose times are not too far apart.

A row of the left at *t* is paired with the rows of the right from *t + lower* to *t + upper*. Each row is paired, on
arrival, with earlier rows of the other side. A null key is equal to nothing.

Rules and invariants:

- pairs come out in the order of the rows that complete them, and for one row by the time of the other, then in the
  order in which these came; so the result depends on the order of the input alone, not on how it is cut into batches;
- rows before the watermark and rows without a time are dropped and counted (``TimeMetrics``);
- a side is kept in shelves by time (``parts``), each part sorted by the hash of the key and by time, so that a batch is
  looked up in it as a whole; a shelf is dropped when no row to come can match it;
- a pair may be older than the watermark by as much as its rows may be apart (``behind_ms``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from flinkplus.errors import ConfigurationError, InvariantViolation
from flinkplus.operators.base.columns import cut, plain, plain_array
from flinkplus.operators.base.keys import check_key_columns, encode_keys
from flinkplus.operators.base.operator import (
    Inherited,
    JsonValue,
    KeyedOperator,
    KeyedState,
    OperatorContext,
    OperatorInstance,
    common_watermark,
    described_columns,
)
from flinkplus.operators.base.parts import Shelves
from flinkplus.operators.base.schema import repeated
from flinkplus.operators.base.stored_state import ROW, ShownRows, StateView, StoredState, reading_context, struct_of
from flinkplus.operators.event_time.event_time import TimeMetrics, check_time_column, event_times
from flinkplus.protocol.program.description import StateDescription
from flinkplus.state.hashing import hash_keys

SHELVES_IN_AN_INTERVAL = 4
LEAST_SHELF_MS, MOST_SHELF_MS = 1_000, 1 << 30
KEPT_ROWS = 1 << 20
"""Rows of each side that stay in memory besides being in the state."""
MAX_PAIRS = 1 << 18
"""Pairs that are made at a time."""
SIDES = ("left", "right")
HASH, KEY, TIME = "#hash", "#key", "#time"
_OWN = (pa.field(HASH, pa.uint64()), pa.field(KEY, pa.binary()), pa.field(TIME, pa.int64()))

Integers = npt.NDArray[np.int64]
Matches = tuple[pa.RecordBatch, Integers, Integers]
"""Rows of one part, and for each row that is looked up the first row that matches it there and the end."""


@dataclass(frozen=True)
class JoinSide:
    """One input: its schema, key columns, and the column of its event time."""

    schema: pa.Schema
    keys: tuple[str, ...]
    column: str
    prefix: str

    @property
    def kept(self) -> pa.Schema:
        """What is kept of its rows."""
        return pa.schema([*_OWN, *self.schema])


@dataclass(frozen=True)
class IntervalJoin(KeyedOperator):
    """``keys`` are those of the left; the first ``left_inputs`` inputs of the vertex are of the left side."""

    left: JoinSide
    right: JoinSide
    lower_ms: int
    upper_ms: int
    left_inputs: int = 1
    hears_watermarks = True
    several_schemas = True

    def check(self) -> None:
        """Raises ``ConfigurationError`` when the two sides cannot be joined so."""
        left, right = self.left, self.right
        for side in (left, right):
            check_key_columns(side.schema, side.keys)
            check_time_column(self.name, side.schema, side.column)
        types = [[side.schema.field(key).type for key in side.keys] for side in (left, right)]
        if types[0] != types[1]:
            raise ConfigurationError(
                f"operator {self.name!r}: the keys {left.keys} and {right.keys} are of different types: "
                f"{', '.join(map(str, types[0]))} and {', '.join(map(str, types[1]))}"
            )
        if self.lower_ms > self.upper_ms:
            raise ConfigurationError(
                f"operator {self.name!r}: lower ({self.lower_ms} ms) is above upper ({self.upper_ms} ms)"
            )

    @property
    def right_columns(self) -> list[str]:
        """What the output has of the right: not its keys, where they have the same names and values as the left's."""
        pairs = zip(self.left.keys, self.right.keys, strict=True)
        same = {right for left, right in pairs if left == right}
        return [name for name in self.right.schema.names if name not in same]

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        left, right = self.left, self.right
        both = set(left.schema.names) & set(self.right_columns)
        fields = [
            side.schema.field(name).with_name(side.prefix + name if name in both else name)
            for side, names in ((left, left.schema.names), (right, self.right_columns))
            for name in names
        ]
        twice = repeated([field.name for field in fields])
        if twice is not None:
            raise ConfigurationError(
                f"operator {self.name!r}: its output would have the column {twice!r} twice; give other prefixes"
            )
        return pa.schema(fields)

    @override
    def page_schemas(self, schema: pa.Schema) -> dict[str, pa.Schema]:
        return {"#left": self.left.kept, "#right": self.right.kept}

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        rows = {name: described_columns(kept) for name, kept in self.page_schemas(schema).items()}
        keys = tuple(str(self.left.schema.field(key).type) for key in self.left.keys)
        settings = {"lower_ms": self.lower_ms, "upper_ms": self.upper_ms}
        return StateDescription(keys=keys, settings=settings, rows=rows, form="pages")

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _IntervalJoinInstance(self, ctx)

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        return [JoinView(self.name, side, join=self) for side in SIDES]


@dataclass(frozen=True, slots=True)
class _Index:
    """How to find rows in a part: ``place`` rises with the rows, by the number of the hash and then by time."""

    hashes: npt.NDArray[np.uint64]
    place: Integers
    first_ms: int
    span: int

    @staticmethod
    def of(batch: pa.RecordBatch) -> _Index:
        hashes = batch.column(0).to_numpy()
        times = batch.column(2).to_numpy()
        new = np.concatenate([[False], hashes[1:] != hashes[:-1]])
        first_ms = int(times.min())
        span = int(times.max()) - first_ms + 1
        starts = np.flatnonzero(np.concatenate([[True], new[1:]]))
        return _Index(hashes[starts], new.cumsum() * span + (times - first_ms), first_ms, span)

    def find(self, hashes: npt.NDArray[np.uint64], earliest: Integers, latest: Integers) -> tuple[Integers, Integers]:
        """For each hash, the run of rows with a time in the bounds, as first row and end."""
        number = np.searchsorted(self.hashes, hashes)
        known = self.hashes[np.minimum(number, len(self.hashes) - 1)] == hashes
        base = number * self.span
        start = np.searchsorted(self.place, base + np.clip(earliest - self.first_ms, 0, self.span))
        end = np.searchsorted(self.place, base + np.clip(latest - self.first_ms + 1, 0, self.span))
        return start, np.where(known, np.maximum(end, start), start)


class _Side:
    """What is kept of one side. A row at *t* can be matched by others at ``t + reach_ms`` and before."""

    def __init__(self, side: JoinSide, ctx: OperatorContext, name: str, reach_ms: int, shelf_ms: int) -> None:
        self.side = side
        self.reach_ms = reach_ms
        self._shelf_ms = shelf_ms
        self._schema = side.kept
        self._name = f"{ctx.operator}#{name}"
        self.shelves = self._shelves(ctx.keyed_state())

    def _shelves(self, state: KeyedState) -> Shelves:
        return Shelves(state, self._name, self._schema, _merged, together=2, kept_rows=KEPT_ROWS)

    def inherit(self, part: Inherited, saved: Any) -> None:
        """Take the rows of another subtask's side that belong here. ``saved``: the snapshot of its shelves."""
        if part.keyed is not None:
            other = self._shelves(part.keyed)
            other.restore(saved)
            self.shelves.inherit(other, lambda rows: part.owned(rows.column(1).to_pylist()))

    def prepared(self, batch: pa.RecordBatch, times: Integers) -> pa.RecordBatch:
        """Rows with their hashes, keys and times."""
        key = encode_keys(batch, self.side.keys)
        columns = [pa.array(hash_keys(key.encoded)[key.codes]), key.encoded.take(pa.array(key.codes)), pa.array(times)]
        return pa.RecordBatch.from_arrays([*columns, *plain(batch, self.side.schema).columns], schema=self._schema)

    def keep(self, rows: pa.RecordBatch, watermark_ms: int | None) -> None:
        """Add prepared rows, except for those that no row can match any more."""
        times = rows.column(2).to_numpy()
        if watermark_ms is not None:
            needed = times + self.reach_ms >= watermark_ms
            if not needed.all():
                rows, times = rows.filter(pa.array(needed)), times[needed]
        shelf = times // self._shelf_ms
        for number in np.unique(shelf).tolist():
            mine = np.flatnonzero(shelf == number)
            part = rows if len(mine) == len(shelf) else rows.take(pa.array(mine))
            self.shelves.add(number, _sorted(part))

    def matches(self, hashes: npt.NDArray[np.uint64], earliest: Integers, latest: Integers) -> Iterator[Matches]:
        """The parts that may have matches, oldest first."""
        first, last = int(earliest.min()) // self._shelf_ms, int(latest.max()) // self._shelf_ms
        for number in [shelf for shelf in self.shelves if first <= shelf <= last]:
            for part, batch in self.shelves.parts(number):
                index: _Index = part.derived or _Index.of(batch)
                if part.batch is not None:  # kept as long as the rows are
                    part.derived = index
                start, end = index.find(hashes, earliest, latest)
                if (end > start).any():
                    yield batch, start, end

    def pending(self, watermark_ms: int | None) -> Iterator[pa.RecordBatch]:
        """The prepared rows that others may still match; takes the shelves out."""
        for number in self.shelves:
            for _, rows in self.shelves.parts(number):
                needed = True if watermark_ms is None else rows.column(2).to_numpy() + self.reach_ms >= watermark_ms
                yield rows.filter(pa.array(np.broadcast_to(needed, rows.num_rows)))
            self.shelves.drop(number)

    def expire(self, watermark_ms: int) -> None:
        for number in list(self.shelves):
            if (number + 1) * self._shelf_ms - 1 + self.reach_ms >= watermark_ms:
                return
            self.shelves.drop(number)


@dataclass(frozen=True, kw_only=True)
class JoinView(StateView):
    """The rows of one side (``state``) that are held; values have both sides, one of them null."""

    kind: ClassVar[str] = ROW

    join: IntervalJoin

    @property
    @override
    def value_type(self) -> pa.DataType:
        sides = (self.join.left, self.join.right)
        return pa.struct([pa.field(name, pa.struct(list(s.schema))) for name, s in zip(SIDES, sides, strict=True)])

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return (f"{self.operator}#{self.state}",)

    @override
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        join, side, value_type = self.join, self.state, self.value_type
        assert side is not None
        instance = _IntervalJoinInstance(join, reading_context(self.operator, stored, join.left.schema))
        instance.restore(saved)
        for rows in instance.pending(side):
            held = struct_of(rows.columns[len(_OWN) :], value_type.field(side).type)
            sides = [held if name == side else pa.nulls(len(held), value_type.field(name).type) for name in SIDES]
            yield ShownRows(rows.column(1).to_pylist(), pa.StructArray.from_arrays(sides, fields=list(value_type)))


def _sorted(rows: pa.RecordBatch) -> pa.RecordBatch:
    order = np.lexsort((rows.column(2).to_numpy(), rows.column(0).to_numpy()))  # stable
    return rows.take(pa.array(order))


def _merged(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return _sorted(_concatenated(parts))


def _concatenated(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


class _IntervalJoinInstance(OperatorInstance):
    def __init__(self, descriptor: IntervalJoin, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._metrics = TimeMetrics(ctx)
        self._left_inputs = descriptor.left_inputs
        lower, upper = descriptor.lower_ms, descriptor.upper_ms
        self._bounds = (lower, upper), (-upper, -lower)  # of the other's time, seen from the left and from the right
        shelf_ms = min(max((upper - lower) // SHELVES_IN_AN_INTERVAL, LEAST_SHELF_MS), MOST_SHELF_MS)
        left = _Side(descriptor.left, ctx, SIDES[0], upper, shelf_ms)
        right = _Side(descriptor.right, ctx, SIDES[1], -lower, shelf_ms)
        self._sides = left, right
        own = len(_OWN)
        right_columns = [own + descriptor.right.schema.get_field_index(name) for name in descriptor.right_columns]
        self._columns = [own + at for at in range(len(descriptor.left.schema))], right_columns
        self._output = descriptor.output_schema(descriptor.left.schema)
        self._watermark_ms: int | None = None
        self._behind_ms = max(upper, -lower, 0)

    @property
    @override
    def behind_ms(self) -> int:
        return self._behind_ms

    def pending(self, side: str) -> Iterator[pa.RecordBatch]:
        """The rows of one side that others may still match, with their hashes, keys and times."""
        return self._sides[SIDES.index(side)].pending(self._watermark_ms)

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        raise InvariantViolation(f"{self._ctx.subtask}: a batch that is of neither side")

    @override
    def process_input(self, position: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        which = int(position >= self._left_inputs)
        rows = self._in_time(batch, self._sides[which])
        if rows is not None:
            yield from self._pairs(which, rows)
            self._sides[which].keep(rows, self._watermark_ms)

    def _in_time(self, batch: pa.RecordBatch, side: _Side) -> pa.RecordBatch | None:
        times = event_times(batch, side.side.column)
        wanted = self._metrics.in_time(times, self._watermark_ms)
        for key in side.side.keys:
            column = plain_array(batch.column(key), side.side.schema.field(key).type)
            wanted = wanted & column.is_valid().to_numpy(zero_copy_only=False)
        if not wanted.any():
            return None
        if wanted.all():
            return side.prepared(batch, times.ms)
        return side.prepared(batch.filter(pa.array(wanted)), times.ms[wanted])

    def _pairs(self, which: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Every row with what it matches of the other side."""
        hashes, times = rows.column(0).to_numpy(), rows.column(2).to_numpy()
        lower, upper = self._bounds[which]
        found = list(self._sides[1 - which].matches(hashes, times + lower, times + upper))
        if not found:
            return
        ends = np.cumsum(np.sum([end - start for _, start, end in found], axis=0))
        first = 0
        while first < len(times):
            before = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + MAX_PAIRS, side="right")))
            yield from self._pairs_of(which, rows, found, first, last)
            first = last

    def _pairs_of(
        self, which: int, rows: pa.RecordBatch, found: list[Matches], first: int, last: int
    ) -> Iterator[pa.RecordBatch]:
        """The pairs of rows ``first`` to ``last``."""
        mine: list[Integers] = []
        theirs: list[pa.RecordBatch] = []
        for batch, start, end in found:
            counts = end[first:last] - start[first:last]
            total = int(counts.sum())
            if total:
                mine.append(np.repeat(np.arange(first, last), counts))
                offsets = np.arange(total) - np.repeat(counts.cumsum() - counts, counts)
                theirs.append(batch.take(pa.array(np.repeat(start[first:last], counts) + offsets)))
        if not mine:
            return
        probes, others = np.concatenate(mine), _concatenated(theirs)
        own = rows.take(pa.array(probes))
        equal = pc.equal(own.column(1), others.column(1))
        order = np.lexsort((others.column(2).to_numpy(), probes))  # stable: what came first stands first
        if not pc.all(equal).as_py():  # two keys of one hash
            order = order[equal.to_numpy(zero_copy_only=False)[order]]
        taken = pa.array(order)
        pair = (own, others) if which == 0 else (others, own)
        columns: list[Any] = []
        for side, positions in zip(pair, self._columns, strict=True):
            columns += [side.column(position).take(taken) for position in positions]
        yield from cut(pa.RecordBatch.from_arrays(columns, schema=self._output))

    @override
    def on_watermark(self, watermark_ms: int) -> Iterator[pa.RecordBatch]:
        self._watermark_ms = watermark_ms
        for side in self._sides:
            side.expire(watermark_ms)
        return iter(())

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        left, right = (side.shelves.snapshot() for side in self._sides)
        return {"watermark_ms": self._watermark_ms, "left": left, "right": right}

    @override
    def restore(self, state: JsonValue) -> None:
        assert isinstance(state, dict)
        self._watermark_ms = state["watermark_ms"]
        for side, name in zip(self._sides, ("left", "right"), strict=True):
            side.shelves.restore(state[name])

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        self._watermark_ms = common_watermark(parts)
        for part in parts:
            for side, name in zip(self._sides, ("left", "right"), strict=True):
                side.inherit(part, part.state[name])
