"""Windows of event time: what a ``Content`` makes of the rows of each key and window.

An *assigner* (``assigners``) says which slices and windows a row is in, a *content* (``contents``) what is kept of rows
and emitted, and the watermark when: when it passes the end of a window, and, on request, before and after that.

Rules:

- rows are emitted by window, then by the bytes of the key; a key without rows in a window has none in the output;
- rows all of whose windows are over, and rows without a time, are dropped and counted (``TimeMetrics``). A window is
  over when the watermark has passed its end by ``lateness_ms``;
- a row that comes after the end of a window, but before it is over, changes the window: the row of its key is emitted
  once more (``LATE``) when the watermark rises next;
- with ``early_ms``, whenever the watermark passes a multiple of that, each open window emits a row (``EARLY``) for each
  key with rows since the last one;
- ``window_start`` is before the watermark at which a row is emitted, by ``behind_ms`` at most;
- each batch is reduced to a few rows for each key and slice; these are merged when they become many (``parts``). So
  nothing is looked up by key, and the state of a window is dropped at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.keys import check_key_columns, row_keys
from flinkplus.operators.base.operator import (
    Inherited,
    JsonValue,
    KeyedOperator,
    OperatorContext,
    OperatorInstance,
    common_watermark,
    described_columns,
)
from flinkplus.operators.base.schema import repeated
from flinkplus.operators.base.stored_state import (
    WINDOW,
    ShownRows,
    StateView,
    StoredState,
    reading_context,
    struct_of,
)
from flinkplus.operators.event_time.assigners import Assigner, FixedWindows, Sessions
from flinkplus.operators.event_time.contents import (
    EARLY,
    END,
    LATE,
    ON_TIME,
    START,
    TIMING,
    Content,
    Emission,
)
from flinkplus.operators.event_time.event_time import TimeMetrics, check_time_column, event_times
from flinkplus.operators.event_time.sessions import SessionSlices
from flinkplus.operators.event_time.slices import Slices
from flinkplus.operators.event_time.tables import Bundle, SpanTable
from flinkplus.protocol.program.description import StateDescription

FRESH = "#fresh"
FEW_SLICES = 64
"""Up to so many slices of a window are looked up one by one."""


@dataclass(frozen=True)
class KeyedWindow(KeyedOperator):
    """``content`` of the rows of each key and window. ``column``: of the event time.

    ``lateness_ms``, ``early_ms``: see the rules of the module; ``None``: no early rows.
    """

    column: str
    assigner: Assigner
    content: Content
    lateness_ms: int = 0
    early_ms: int | None = None
    hears_watermarks = True
    holds_rows = True

    @property
    def tells_timing(self) -> bool:
        """Whether several rows may be emitted for a key and window, so that each says which it is."""
        return bool(self.lateness_ms) or self.early_ms is not None

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        check_key_columns(schema, self.keys)
        check_time_column(self.name, schema, self.column)
        self.assigner.check(self.name)
        if isinstance(self.assigner, Sessions) and self.tells_timing:
            raise ConfigurationError(
                f"operator {self.name!r}: sessions have neither allowed_lateness nor emit_every; give with_watermark a "
                "longer delay"
            )
        time = schema.field(self.column).type
        bound = pa.timestamp("us", time.tz if pa.types.is_timestamp(time) else "UTC")
        lead = [schema.field(key).with_nullable(True) for key in self.keys]
        lead += [pa.field(START, bound), pa.field(END, bound)]
        lead += [pa.field(TIMING, pa.string())] if self.tells_timing else []
        output = self.content.output_schema(self.name, schema, self.keys, pa.schema(lead))
        twice = repeated(output.names)
        if twice is not None:
            raise ConfigurationError(f"operator {self.name!r}: its output would have the column {twice!r} twice")
        return output

    @override
    def page_schemas(self, schema: pa.Schema) -> dict[str, pa.Schema]:
        kept = self.content.table_schemas(schema, self.keys)
        if isinstance(self.assigner, Sessions):
            spans = SpanTable()
            kept |= {spans.suffix: spans.schema}
        if self.tells_timing:
            kept |= {FRESH + suffix: table for suffix, table in kept.items()}
        return kept

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        settings = {**self.assigner.settings, **self.content.settings}
        if self.tells_timing:
            settings["timing"] = True
        rows = {name: described_columns(kept) for name, kept in self.page_schemas(schema).items()}
        return StateDescription(keys=self._key_types(schema), settings=settings, rows=rows, form="pages")

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return self.instance(ctx)

    def instance(self, ctx: OperatorContext) -> WindowInstance:
        """The instance for one subtask."""
        return SessionInstance(self, ctx) if isinstance(self.assigner, Sessions) else FixedInstance(self, ctx)

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        shown = replace(self, content=self.content.shown)
        return [WindowView(self.name, window=shown, schema=schema)]


@dataclass(frozen=True, kw_only=True)
class WindowView(StateView):
    """The windows that are open, with what they would emit now."""

    kind: ClassVar[str] = WINDOW

    window: KeyedWindow
    schema: pa.Schema

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return tuple(self.operator + suffix for suffix in self.window.page_schemas(self.schema))

    @property
    def _values(self) -> list[pa.Field]:
        output = self.window.output_schema(self.schema)
        return [field for field in output if field.name not in (*self.window.keys, START, END, TIMING)]

    @property
    @override
    def value_type(self) -> pa.DataType:
        return pa.struct(self._values)

    @override
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        window, value_type = self.window, self.value_type
        instance = window.instance(reading_context(self.operator, stored, self.schema))
        instance.restore(saved)
        names = [field.name for field in value_type]
        for bounds, rows in instance.pending():
            keys = row_keys(rows, window.keys).to_pylist()
            values = struct_of([rows.column(name) for name in names], value_type)
            yield ShownRows(keys, values, window_ms=bounds)


class WindowInstance(OperatorInstance):
    """What both kinds of windows have in common."""

    def __init__(self, descriptor: KeyedWindow, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._metrics = TimeMetrics(ctx)
        self._keys = descriptor.keys
        self._column = descriptor.column
        self._content = descriptor.content.create(
            ctx, descriptor.keys, descriptor.output_schema(ctx.input_schema), descriptor.tells_timing
        )
        self._behind_ms = descriptor.assigner.behind_ms + descriptor.lateness_ms
        self._watermark_ms: int | None = None

    @property
    @override
    def behind_ms(self) -> int:
        return self._behind_ms

    def _bundle(self, batch: pa.RecordBatch, assigner: Assigner) -> Bundle | None:
        """The rows of a batch that are in time; ``None`` if none is."""
        if not batch.num_rows:
            return None
        times = event_times(batch, self._column)
        ms, starts = times.ms, assigner.starts(times.ms)
        over = starts if self._watermark_ms is None else self._over_at(starts)
        wanted = self._metrics.in_time(times, over, 0, self._watermark_ms)
        if not wanted.all():
            batch, ms, starts = batch.filter(pa.array(wanted)), ms[wanted], starts[wanted]
        return Bundle(batch, ms, starts, self._keys, self._ctx) if len(ms) else None

    def _over_at(self, starts: np.ndarray) -> np.ndarray:
        """For the slice of each row, from which watermark on it is too late."""
        raise NotImplementedError

    def pending(self) -> Iterator[tuple[tuple[int, int], pa.RecordBatch]]:
        """The bounds of each open window, and the rows that it would emit now."""
        raise NotImplementedError


class FixedInstance(WindowInstance):
    """State: ``main`` has the rows of all slices; ``fresh`` those of keys that are to be emitted early or late."""

    def __init__(self, descriptor: KeyedWindow, ctx: OperatorContext) -> None:
        super().__init__(descriptor, ctx)
        assert isinstance(descriptor.assigner, FixedWindows)
        self._assigner = descriptor.assigner
        self._lateness_ms = descriptor.lateness_ms
        self._early_ms = descriptor.early_ms
        self._main = Slices(ctx.keyed_state(), ctx.operator, self._content.tables)
        self._fresh = (
            Slices(ctx.keyed_state(), ctx.operator + FRESH, self._content.tables) if descriptor.tells_timing else None
        )

    @override
    def _over_at(self, starts: np.ndarray) -> np.ndarray:
        return self._assigner.last_ends(starts) + self._lateness_ms

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        bundle = self._bundle(batch, self._assigner)
        if bundle is not None:
            self._add(bundle)
        return iter(())

    def _add(self, bundle: Bundle) -> None:
        """Rows of a slice go to one side until a watermark comes, so that their order is kept."""
        if self._fresh is None:
            self._main.add(bundle)
        elif self._early_ms is not None:
            self._fresh.add(bundle)
        else:
            ended = np.array([self._has_ended(start) for start in bundle.slices.tolist()])
            for side, rows in ((self._fresh, ended), (self._main, ~ended)):
                if rows.any():
                    side.add(bundle if rows.all() else bundle.only(rows[bundle.slice_codes]))

    def _has_ended(self, start: int) -> bool:
        """Whether a window of a slice has been emitted."""
        first = self._assigner.windows_of(self._assigner.number(start))[0]
        return self._watermark_ms is not None and self._assigner.end(first) <= self._watermark_ms

    @override
    def on_watermark(self, watermark_ms: int) -> Iterator[pa.RecordBatch]:
        before, self._watermark_ms = self._watermark_ms, watermark_ms
        if self._fresh is not None:
            yield from self._repeated(self._fresh, before, watermark_ms)
        for window in self._due(before, watermark_ms):
            yield from self._emitted(window)
        self._drop_over(watermark_ms)

    def _due(self, before: int | None, watermark_ms: int) -> list[int]:
        """The windows with rows whose end the watermark has passed since ``before``, ascending."""
        due: set[int] = set()
        for start in self._main:
            windows = self._assigner.windows_of(self._assigner.number(start))
            if self._assigner.end(windows[0]) > watermark_ms:
                break
            for window in windows:
                end = self._assigner.end(window)
                if end > watermark_ms:
                    break
                if before is None or end > before:
                    due.add(window)
        return sorted(due)

    def _starts(self, window: int, known: Slices) -> list[int]:
        """The starts of the slices of a window that there are."""
        if self._assigner.slices <= FEW_SLICES:
            starts = map(self._assigner.boundary, range(window, window + self._assigner.slices))
            return [start for start in dict.fromkeys(starts) if start in known]
        first, end = self._assigner.boundary(window), self._assigner.end(window)
        return [start for start in known if first <= start < end]

    def _emitted(self, window: int) -> Iterator[pa.RecordBatch]:
        starts = self._starts(window, self._main)
        if self._assigner.slices == 1 and not self._lateness_ms:
            tables = self._main.take(starts[0])
        else:
            tables = self._main.read(starts)
        yield from self._content.emit(self._emission(window, tables, ON_TIME))

    def _emission(self, window: int, tables: Sequence[pa.RecordBatch], timing: str) -> Emission:
        return Emission(tables, self._assigner.boundary(window), self._assigner.end(window), timing)

    def _drop_over(self, watermark_ms: int) -> None:
        for start in self._main:
            last = self._assigner.windows_of(self._assigner.number(start))[-1]
            if self._assigner.end(last) + self._lateness_ms > watermark_ms:
                return
            self._main.drop(start)

    def _repeated(self, fresh: Slices, before: int | None, watermark_ms: int) -> Iterator[pa.RecordBatch]:
        """Emit what fresh rows change in windows that have been emitted, and early rows; then the rows are old."""
        early = self._early_ms
        ticked = early is not None and (before is None or watermark_ms // early > before // early)
        touched: list[int] = []
        windows: dict[int, str] = {}
        for start in fresh:
            timings = self._timings(start, before, watermark_ms)
            if ticked or any(timing != EARLY for timing in timings.values()):
                touched.append(start)
                windows |= timings
        for window in sorted(windows):
            if windows[window] == LATE or (windows[window] == EARLY and early is not None):
                yield from self._changed(fresh, window, windows[window])
        for start in touched:
            self._main.add_rows(start, fresh.take(start))

    def _timings(self, start: int, before: int | None, watermark_ms: int) -> dict[int, str]:
        """How each window of a slice of fresh rows is emitted; a window that is over is not."""
        timings = {}
        for window in self._assigner.windows_of(self._assigner.number(start)):
            end = self._assigner.end(window)
            if before is None or end > before:
                timings[window] = ON_TIME if end <= watermark_ms else EARLY
            elif end + self._lateness_ms > before:
                timings[window] = LATE
        return timings

    def _changed(self, fresh: Slices, window: int, timing: str) -> Iterator[pa.RecordBatch]:
        """The rows of a window for keys with fresh rows."""
        new = fresh.read(self._starts(window, fresh))
        old = self._main.read(self._starts(window, self._main))
        keys = new[0].column(0)
        known = [table.filter(pc.is_in(table.column(0), value_set=keys)) for table in old]
        yield from self._content.emit(self._emission(window, self._main.merged([known, new]), timing))

    @override
    def pending(self) -> Iterator[tuple[tuple[int, int], pa.RecordBatch]]:
        for start in list(self._fresh or ()):
            assert self._fresh is not None
            self._main.add_rows(start, self._fresh.read([start]))
        open_windows: set[int] = set()
        for start in self._main:
            open_windows.update(self._assigner.windows_of(self._assigner.number(start)))
        for window in sorted(open_windows):
            end = self._assigner.end(window)
            if self._watermark_ms is None or end + self._lateness_ms > self._watermark_ms:
                emission = self._emission(window, self._main.read(self._starts(window, self._main)), EARLY)
                for rows in self._content.emit(emission):
                    yield (emission.start_ms, emission.end_ms), rows

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        first, *others = self._main.snapshot()
        state: dict[str, Any] = {"watermark_ms": self._watermark_ms, "windows": first}
        if others:
            state["rows"] = others
        if self._fresh is not None:
            state["fresh"] = self._fresh.snapshot()
        return state

    @override
    def restore(self, state: JsonValue) -> None:
        assert isinstance(state, dict)
        self._watermark_ms = state["watermark_ms"]
        self._main.restore([state["windows"], *state.get("rows", ())])
        if self._fresh is not None:
            self._fresh.restore(state["fresh"])

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        self._watermark_ms = common_watermark(parts)
        for part in parts:
            self._main.inherit(part, [part.state["windows"], *part.state.get("rows", ())])
            if self._fresh is not None:
                self._fresh.inherit(part, part.state["fresh"])


class SessionInstance(WindowInstance):
    def __init__(self, descriptor: KeyedWindow, ctx: OperatorContext) -> None:
        super().__init__(descriptor, ctx)
        assert isinstance(descriptor.assigner, Sessions)
        self._assigner = descriptor.assigner
        self._slices = SessionSlices(ctx, self._assigner, self._content.tables)

    @override
    def _over_at(self, starts: np.ndarray) -> np.ndarray:
        return starts + self._assigner.reach_ms

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        bundle = self._bundle(batch, self._assigner)
        if bundle is not None:
            self._slices.add(bundle)
        return iter(())

    @override
    def on_watermark(self, watermark_ms: int) -> Iterator[pa.RecordBatch]:
        self._watermark_ms = watermark_ms
        for emission in self._slices.ended(watermark_ms):
            yield from self._content.emit(emission)

    @override
    def pending(self) -> Iterator[tuple[tuple[int, int], pa.RecordBatch]]:
        for emission in self._slices.each_ended():
            for rows in self._content.emit(emission):
                yield (emission.start_ms, emission.end_ms), rows

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        return {"watermark_ms": self._watermark_ms, "slices": self._slices.snapshot()}

    @override
    def restore(self, state: JsonValue) -> None:
        assert isinstance(state, dict)
        self._watermark_ms = state["watermark_ms"]
        self._slices.restore(state["slices"])

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        self._watermark_ms = common_watermark(parts)
        for part in parts:
            self._slices.inherit(part, part.state["slices"])
