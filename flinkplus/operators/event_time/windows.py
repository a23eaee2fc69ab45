"""Windows of event time: what a ``Content`` makes of the rows of each key and window.

An *assigner* (``assigners``) says which slices and windows a row is in, a *content* (``contents``) what is kept of rows
and emitted, and the watermark when: when it passes the end of a window, and, on request, before and after that.

Rules:

- rows are emitted by window, then by the bytes of the key; a key without rows in a window has none in the output;
- rows all of whose windows are over, and rows without a time, are dropped and counted (``TimeMetrics``). A window is
  over when the watermark has passed its end by ``lateness_ms``;
- with ``on_late="side-output"``, the rows whose windows are over go to the side output ``late rows``, as they came;
- a row that comes after the end of a window, but before it is over, changes the window: the row of its key is emitted
  once more (``LATE``) when the watermark rises next;
- with ``early_ms``, whenever the watermark passes a multiple of that, each open window emits a row (``EARLY``) for each
  key with rows since the last one;
- ``window_start`` is before the watermark at which a row is emitted, by ``behind_ms`` at most;
- each batch is reduced to a few rows for each key and slice; these are merged when they become many (``parts``). So
  nothing is looked up by key, and the state of a window is dropped at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.columns import cut, plain
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
from flinkplus.operators.event_time.slices import Slices, only_keys
from flinkplus.operators.event_time.tables import Bundle, SpanTable
from flinkplus.operators.keyed.conditions import Conditions
from flinkplus.operators.rows.rejects import LATE_ROWS, tagged
from flinkplus.protocol.program.description import StateDescription

OnLate = Literal["drop", "side-output"]
FRESH = "#fresh"
NO_WINDOW = -(1 << 62)
"""Before every window."""
FEW_SLICES = 64
"""Up to so many slices of a window are looked up one by one."""


@dataclass(frozen=True)
class KeyedWindow(KeyedOperator):
    """``content`` of the rows of each key and window. ``column``: of the event time.

    ``lateness_ms``, ``early_ms``, ``on_late``: see the rules of the module; ``None``: no early rows.
    """

    column: str
    assigner: Assigner
    content: Content
    lateness_ms: int = 0
    early_ms: int | None = None
    on_late: OnLate = "drop"
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
    def side_outputs(self, schema: pa.Schema) -> dict[str, pa.Schema]:
        if self.on_late not in ("drop", "side-output"):
            raise ConfigurationError(
                f"operator {self.name!r}: on_late must be 'drop' or 'side-output', not {self.on_late!r}"
            )
        return {LATE_ROWS: schema} if self.on_late == "side-output" else {}

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
    """What both kinds of windows have in common.

    What ends at ``_over_ms`` or before is over. That never falls: what was dropped stays over in a program with a
    longer ``allowed_lateness``.
    """

    _assigner: Assigner

    def __init__(self, descriptor: KeyedWindow, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._metrics = TimeMetrics(ctx)
        self._keys = descriptor.keys
        self._column = descriptor.column
        self._content = descriptor.content.create(
            ctx, descriptor.keys, descriptor.output_schema(ctx.input_schema), descriptor.tells_timing
        )
        self._conditions = Conditions(descriptor.content.wheres, ctx)
        self._gives_late = bool(descriptor.side_outputs(ctx.input_schema))
        self._lateness_ms = descriptor.lateness_ms
        self._behind_ms = descriptor.assigner.behind_ms + descriptor.lateness_ms
        self._watermark_ms: int | None = None
        self._over_ms: int | None = None

    @property
    @override
    def behind_ms(self) -> int:
        return self._behind_ms

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        times = event_times(batch, self._column)
        ms, starts = times.ms, self._assigner.starts(times.ms)
        late = self._metrics.late(times, self._over_at(starts), self._over_ms, self._watermark_ms)
        wanted, whole = times.known & ~late, batch
        if not wanted.all():
            batch, ms, starts = batch.filter(pa.array(wanted)), ms[wanted], starts[wanted]
        if len(ms):
            self._add(Bundle(batch, ms, starts, self._keys, self._conditions))
        if self._gives_late and late.any():
            yield from cut(tagged(plain(whole.filter(pa.array(late)), self._ctx.input_schema), LATE_ROWS))

    def _add(self, bundle: Bundle) -> None:
        """Take rows that are in time."""
        raise NotImplementedError

    def _over_at(self, starts: np.ndarray) -> np.ndarray:
        """For the slice of each row, the end of the last window that it is in, without ``allowed_lateness``."""
        raise NotImplementedError

    def _rise(self, watermark_ms: int) -> None:
        """Event time has advanced. After a change of the parallelism it may be behind for a while; it stays then."""
        self._watermark_ms = watermark_ms if self._watermark_ms is None else max(self._watermark_ms, watermark_ms)
        over_ms = watermark_ms - self._lateness_ms
        self._over_ms = over_ms if self._over_ms is None else max(self._over_ms, over_ms)

    def pending(self) -> Iterator[tuple[tuple[int, int], pa.RecordBatch]]:
        """The bounds of each open window, and the rows that it would emit now."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far windows are when the watermark rises: the last one that was ``over`` and that was ``emitted`` before, and
    that has ``ended`` now.

    ``ticked``: the watermark has passed a multiple of ``early_ms``.
    """

    over: int
    emitted: int
    ended: int
    ticked: bool


class FixedInstance(WindowInstance):
    """State: ``main`` has the rows of all slices; ``fresh`` those of keys that are to be emitted early or late."""

    _assigner: FixedWindows

    def __init__(self, descriptor: KeyedWindow, ctx: OperatorContext) -> None:
        super().__init__(descriptor, ctx)
        assert isinstance(descriptor.assigner, FixedWindows)
        self._assigner = descriptor.assigner
        self._early_ms = descriptor.early_ms
        self._main = Slices(ctx.keyed_state(), ctx.operator, self._content.tables)
        self._fresh = (
            Slices(ctx.keyed_state(), ctx.operator + FRESH, self._content.tables) if descriptor.tells_timing else None
        )

    @override
    def _over_at(self, starts: np.ndarray) -> np.ndarray:
        return self._assigner.last_ends(starts)

    @override
    def _add(self, bundle: Bundle) -> None:
        """Rows of a slice go to one side until a watermark comes, so that their order is kept."""
        if self._fresh is None:
            self._main.add(bundle)
        elif self._early_ms is not None:
            self._fresh.add(bundle)
        else:
            emitted = self._last_ended(self._watermark_ms)
            ended = np.array([self._windows_of(start)[0] <= emitted for start in bundle.slices.tolist()])
            for side, rows in ((self._fresh, ended), (self._main, ~ended)):
                if rows.any():
                    side.add(bundle if rows.all() else bundle.only(rows[bundle.slice_codes]))

    def _windows_of(self, start: int) -> range:
        return self._assigner.windows_of(self._assigner.number(start))

    def _last_ended(self, at_ms: int | None) -> int:
        return NO_WINDOW if at_ms is None else self._assigner.last_ended(at_ms)

    @override
    def on_watermark(self, watermark_ms: int) -> Iterator[pa.RecordBatch]:
        before, early = self._watermark_ms, self._early_ms
        ticked = early is not None and (before is None or watermark_ms // early > before // early)
        over, emitted = self._last_ended(self._over_ms), self._last_ended(before)
        progress = _Progress(over, emitted, self._last_ended(watermark_ms), ticked)
        self._rise(watermark_ms)
        if self._fresh is not None:
            yield from self._repeated(self._fresh, progress)
        for window in self._due(progress):
            yield from self._emitted(window)
        self._drop_over()

    def _due(self, progress: _Progress) -> list[int]:
        """The windows with rows that have ended and were not emitted, ascending."""
        due: set[int] = set()
        for start in self._main if progress.emitted < progress.ended else ():
            windows = self._windows_of(start)
            if windows[0] > progress.ended:
                break
            due.update(_between(windows, progress.emitted, progress.ended))
        return sorted(due)

    def _starts(self, window: int, known: Slices) -> list[int]:
        """The starts of the slices of a window that there are."""
        first, end = self._assigner.boundary(window), self._assigner.end(window)
        if self._assigner.slices <= FEW_SLICES:
            starts = map(self._assigner.boundary, range(window, window + self._assigner.slices))
            # a day that a zone has left out begins and ends where the next one begins
            return [start for start in dict.fromkeys(starts) if start < end and start in known]
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

    def _drop_over(self) -> None:
        over = self._last_ended(self._over_ms)
        for start in self._main:
            if self._windows_of(start)[-1] > over:
                return
            self._main.drop(start)

    def _repeated(self, fresh: Slices, progress: _Progress) -> Iterator[pa.RecordBatch]:
        """Emit what fresh rows change in windows that have been emitted, and early rows; then the rows are old."""
        touched: list[int] = []
        changed: set[int] = set()
        for start in fresh:
            windows = self._windows_of(start)
            if progress.ticked or _between(windows, progress.over, progress.ended):
                touched.append(start)
                changed.update(_between(windows, progress.over, windows[-1]))
        early = self._early_ms is not None
        timings = {
            window: LATE if window <= progress.emitted else EARLY
            for window in sorted(changed)
            if window <= progress.emitted or (early and window > progress.ended)
        }
        if timings:
            yield from self._changed(fresh, timings)
        for start in touched:
            self._main.add_rows(start, fresh.take(start))

    def _changed(self, fresh: Slices, timings: Mapping[int, str]) -> Iterator[pa.RecordBatch]:
        """The rows of some windows for keys with fresh rows. Of the old rows only those of such keys are merged."""
        keys = pa.chunked_array([fresh.read_first(start).column(0) for start in fresh], pa.binary())
        known = cache(partial(self._main.read_keys, keys=keys))
        for window, timing in timings.items():
            new = fresh.read(self._starts(window, fresh))
            old = [only_keys(known(start), new[0].column(0)) for start in self._starts(window, self._main)]
            yield from self._content.emit(self._emission(window, self._main.merged([*old, new]), timing))

    @override
    def pending(self) -> Iterator[tuple[tuple[int, int], pa.RecordBatch]]:
        for start in list(self._fresh or ()):
            assert self._fresh is not None
            self._main.add_rows(start, self._fresh.read([start]))
        open_windows: set[int] = set()
        for start in self._main:
            windows = self._windows_of(start)
            open_windows.update(_between(windows, self._last_ended(self._over_ms), windows[-1]))
        for window in sorted(open_windows):
            emission = self._emission(window, self._main.read(self._starts(window, self._main)), EARLY)
            for rows in self._content.emit(emission):
                yield (emission.start_ms, emission.end_ms), rows

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        first, *others = self._main.snapshot()
        state: dict[str, Any] = {"watermark_ms": self._watermark_ms, "over_ms": self._over_ms, "windows": first}
        if others:
            state["rows"] = others
        if self._fresh is not None:
            state["fresh"] = self._fresh.snapshot()
        return state

    @override
    def restore(self, state: JsonValue) -> None:
        assert isinstance(state, dict)
        self._watermark_ms, self._over_ms = state["watermark_ms"], state["over_ms"]
        self._main.restore([state["windows"], *state.get("rows", ())])
        if self._fresh is not None:
            self._fresh.restore(state["fresh"])

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        self._watermark_ms = common_watermark(parts)
        over = [part.state["over_ms"] for part in parts if part.state["over_ms"] is not None]
        self._over_ms = max(over, default=None)
        for part in parts:
            self._main.inherit(part, [part.state["windows"], *part.state.get("rows", ())])
            if self._fresh is not None:
                self._fresh.inherit(part, part.state["fresh"])


def _between(windows: range, after: int, until: int) -> range:
    """The windows after one and up to another."""
    return range(max(windows.start, after + windows.step), min(windows.stop, until + 1), windows.step)


class SessionInstance(WindowInstance):
    _assigner: Sessions

    def __init__(self, descriptor: KeyedWindow, ctx: OperatorContext) -> None:
        super().__init__(descriptor, ctx)
        assert isinstance(descriptor.assigner, Sessions)
        self._assigner = descriptor.assigner
        self._slices = SessionSlices(ctx, self._assigner, self._content.tables)

    @override
    def _over_at(self, starts: np.ndarray) -> np.ndarray:
        return starts + self._assigner.reach_ms

    @override
    def _add(self, bundle: Bundle) -> None:
        self._slices.add(bundle)

    @override
    def on_watermark(self, watermark_ms: int) -> Iterator[pa.RecordBatch]:
        self._rise(watermark_ms)
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
        self._watermark_ms = self._over_ms = state["watermark_ms"]
        self._slices.restore(state["slices"])

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        self._watermark_ms = self._over_ms = common_watermark(parts)
        for part in parts:
            self._slices.inherit(part, part.state["slices"])
