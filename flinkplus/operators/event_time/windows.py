"""Tumbling windows of event time: aggregates of each key and window, emitted when the watermark passes its end.

Rules:

- windows are ``size_ms`` long, and begin at multiples of that since 1970 (UTC);
- rows are emitted by window, then by the bytes of the key; a key without rows in a window has none in the output;
- rows whose window was emitted already and rows without a time are dropped and counted (``TimeMetrics``);
- ``window_start`` is before the watermark at which a row is emitted, by up to the size of a window (``behind_ms``);
- each batch is reduced to a row for each key and window; these are merged when they become many (``parts``). So
  nothing is looked up by key, and the state of a window is dropped at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.base.columns import cut, plain_array
from flinkplus.operators.base.keys import check_key_columns, encode_keys, row_keys
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
from flinkplus.operators.base.stored_state import (
    WINDOW,
    ShownRows,
    StateView,
    StoredState,
    reading_context,
    struct_of,
)
from flinkplus.operators.event_time.event_time import TimeMetrics, check_time_column, event_times
from flinkplus.operators.keyed.aggregates import Aggregate, Groups
from flinkplus.protocol.program.description import StateDescription

START, END = "window_start", "window_end"
MERGED_PARTS = 8


@dataclass(frozen=True)
class TumblingWindow(KeyedOperator):
    """For each key and window: the key columns, ``window_start``, ``window_end``, and the aggregates."""

    column: str
    size_ms: int
    aggregates: tuple[Aggregate, ...]
    hears_watermarks = True
    holds_rows = True

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        check_key_columns(schema, self.keys)
        check_time_column(self.name, schema, self.column)
        if not self.aggregates:
            raise ConfigurationError(f"operator {self.name!r}: name at least one aggregate")
        time = schema.field(self.column).type
        bound = pa.timestamp("us", time.tz if pa.types.is_timestamp(time) else "UTC")
        fields = [schema.field(key).with_nullable(True) for key in self.keys]
        fields += [pa.field(START, bound), pa.field(END, bound)]
        for aggregate in self.aggregates:
            aggregate.check(self.name, schema)
            fields.append(pa.field(aggregate.output, aggregate.result_type(schema)))
        twice = repeated([field.name for field in fields])
        if twice is not None:
            raise ConfigurationError(f"operator {self.name!r}: its output would have the column {twice!r} twice")
        return pa.schema(fields)

    def parts_schema(self, schema: pa.Schema) -> pa.Schema:
        """What is kept for each key and window, for an input of ``schema``."""
        fields = [pa.field("key", pa.binary())]
        fields += [pa.field(f"key {at}", schema.field(key).type) for at, key in enumerate(self.keys)]
        for at, aggregate in enumerate(self.aggregates):
            types = aggregate.partial_types(schema)
            fields += [pa.field(f"aggregate {at} {part}", dtype) for part, dtype in enumerate(types)]
        return pa.schema(fields)

    @override
    def page_schemas(self, schema: pa.Schema) -> dict[str, pa.Schema]:
        return {"": self.parts_schema(schema)}

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        settings = {"size_ms": self.size_ms, "aggregates": [aggregate.kind for aggregate in self.aggregates]}
        rows = {name: described_columns(kept) for name, kept in self.page_schemas(schema).items()}
        return StateDescription(keys=self._key_types(schema), settings=settings, rows=rows, form="pages")

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _TumblingWindowInstance(self, ctx)

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        return [WindowView(self.name, window=self, schema=schema)]


@dataclass(frozen=True, kw_only=True)
class WindowView(StateView):
    """The windows that are open, with their aggregates so far."""

    kind: ClassVar[str] = WINDOW

    window: TumblingWindow
    schema: pa.Schema

    @property
    @override
    def value_type(self) -> pa.DataType:
        return pa.struct([pa.field(a.output, a.result_type(self.schema)) for a in self.window.aggregates])

    @override
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        window, value_type = self.window, self.value_type
        instance = _TumblingWindowInstance(window, reading_context(self.operator, stored, self.schema))
        instance.restore(saved)
        first = len(window.keys) + 2
        for start_ms, rows in instance.pending():
            keys = row_keys(rows, window.keys).to_pylist()
            values = struct_of(rows.columns[first:], value_type)
            yield ShownRows(keys, values, window_ms=(start_ms, start_ms + window.size_ms))


def _owned_rows(part: Inherited, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    return part.owned(rows.column(0).to_pylist())


class _TumblingWindowInstance(OperatorInstance):
    def __init__(self, descriptor: TumblingWindow, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._metrics = TimeMetrics(ctx)
        self._keys = descriptor.keys
        self._column = descriptor.column
        self._size_ms = descriptor.size_ms
        self._aggregates = descriptor.aggregates
        self._output = descriptor.output_schema(ctx.input_schema)
        self._types = [aggregate.partial_types(ctx.input_schema) for aggregate in self._aggregates]
        self._schema = descriptor.parts_schema(ctx.input_schema)
        self._windows = self._shelves(ctx.keyed_state())
        self._watermark_ms: int | None = None

    def _shelves(self, state: KeyedState) -> Shelves:
        return Shelves(state, self._ctx.operator, self._schema, self._merged, together=MERGED_PARTS)

    @property
    @override
    def behind_ms(self) -> int:
        return self._size_ms

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._add(batch)
        return iter(())

    def _add(self, batch: pa.RecordBatch) -> None:
        times = event_times(batch, self._column)
        starts = times.ms - times.ms % self._size_ms
        wanted = self._metrics.in_time(times, starts, self._size_ms, self._watermark_ms)
        if not wanted.all():
            batch, starts = batch.filter(pa.array(wanted)), starts[wanted]
        if batch.num_rows:
            self._reduce(batch, starts)

    def _reduce(self, batch: pa.RecordBatch, starts: np.ndarray) -> None:
        key = encode_keys(batch, self._keys).made_distinct()
        windows, window = np.unique(starts, return_inverse=True)
        groups = Groups.of(window * len(key.encoded) + key.codes)
        firsts = groups.firsts
        rows = pa.array(firsts)
        columns = [key.encoded.take(pa.array(key.codes[firsts]))]
        for at, name in enumerate(self._keys):
            columns.append(plain_array(batch.column(name).take(rows), self._schema.field(1 + at).type))
        try:
            for aggregate, types in zip(self._aggregates, self._types, strict=True):
                columns += aggregate.first(batch, groups, types)
        except (OverflowError, pa.ArrowInvalid) as error:
            raise self._too_large(error) from error
        reduced = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        bounds = np.searchsorted(window[firsts], np.arange(len(windows) + 1)).tolist()
        for at, start in enumerate(windows.tolist()):
            self._windows.add(start, reduced.slice(bounds[at], bounds[at + 1] - bounds[at]))

    def _merged(self, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        """One row for each key of several parts."""
        whole = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
        groups = Groups.of(whole.column(0).dictionary_encode().indices.to_numpy().astype(np.int64))
        rows = pa.array(groups.firsts)
        columns = [whole.column(at).take(rows) for at in range(1 + len(self._keys))]
        try:
            for aggregate, partial in self._partials(whole):
                columns += aggregate.merge(partial, groups)
        except OverflowError as error:
            raise self._too_large(error) from error
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _partials(self, reduced: pa.RecordBatch) -> Iterator[tuple[Aggregate, list[pa.Array]]]:
        at = 1 + len(self._keys)
        for aggregate, types in zip(self._aggregates, self._types, strict=True):
            yield aggregate, reduced.columns[at : at + len(types)]
            at += len(types)

    def _too_large(self, error: Exception) -> UserFunctionError:
        sums = ", ".join(repr(a.column) for a in self._aggregates if a.column is not None)
        cause = f"an aggregate is too large: beyond 64 bits, or beyond the digits of its decimal type ({error})"
        return UserFunctionError(self._ctx.operator, self._ctx.subtask, f"rows of a window, column {sums}", cause)

    @override
    def on_watermark(self, watermark_ms: int) -> Iterator[pa.RecordBatch]:
        self._watermark_ms = watermark_ms
        for start in self._windows:
            if start + self._size_ms > watermark_ms:
                return
            yield from cut(self._result(start, self._windows.take(start)))

    def pending(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The start of each window that is kept, and the rows that it would emit now; takes the windows out."""
        for start in self._windows:
            yield start, self._result(start, self._windows.take(start))

    def _result(self, start_ms: int, reduced: pa.RecordBatch) -> pa.RecordBatch:
        reduced = reduced.take(pc.array_sort_indices(reduced.column(0)))
        columns: list[Any] = reduced.columns[1 : 1 + len(self._keys)]
        for name, bound_ms in ((START, start_ms), (END, start_ms + self._size_ms)):
            numbers = pa.array(np.full(reduced.num_rows, bound_ms * 1000, np.int64))
            columns.append(numbers.view(self._output.field(name).type))
        try:
            for aggregate, partial in self._partials(reduced):
                columns.append(aggregate.result(partial, self._output.field(aggregate.output).type))
        except OverflowError as error:
            raise self._too_large(error) from error
        return pa.RecordBatch.from_arrays(columns, schema=self._output)

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        return {"watermark_ms": self._watermark_ms, "windows": self._windows.snapshot()}

    @override
    def restore(self, state: JsonValue) -> None:
        assert isinstance(state, dict)
        self._watermark_ms = state["watermark_ms"]
        self._windows.restore(state["windows"])

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        self._watermark_ms = common_watermark(parts)
        for part in parts:
            if part.keyed is not None:
                other = self._shelves(part.keyed)
                other.restore(part.state["windows"])
                self._windows.inherit(other, partial(_owned_rows, part))
