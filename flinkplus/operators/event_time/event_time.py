"""Event time, which a column of each row holds, and the operator that makes watermarks of it.

Rules:

- event times are counted in whole milliseconds since 1970 (finer ones are rounded down), in a column of timestamps or
  of integers, which are milliseconds themselves; a row without one (null) has no time, and moves no watermark;
- a watermark is a pure function of the rows so far, and is made at most once a batch;
- every operator that uses event time counts its late rows, and those without a time, from 0 on (``TimeMetrics``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.columns import plain_array
from flinkplus.operators.base.durations import MAX_TIME_MS
from flinkplus.operators.base.operator import (
    Inherited,
    JsonValue,
    Operator,
    OperatorContext,
    OperatorInstance,
    WatermarkMaker,
)
from flinkplus.operators.base.schema import check_column
from flinkplus.protocol.program.description import StateDescription

LATE_ROWS, MAX_LATE_MS, WITHOUT_TIME = "late_rows", "max_late_ms", "rows_without_time"
_PER_MS = {"us": 1_000, "ns": 1_000_000}


def check_time_column(operator: str, schema: pa.Schema, column: str) -> None:
    """Raises ``ConfigurationError`` when there is no such column, or it cannot be a time."""
    check_column(operator, schema, column)
    dtype = schema.field(column).type
    if not (pa.types.is_timestamp(dtype) or (pa.types.is_integer(dtype) and not pa.types.is_uint64(dtype))):
        raise ConfigurationError(
            f"operator {operator!r}: column {column!r} is {dtype}; event time is a timestamp, or an integer of "
            "milliseconds"
        )


@dataclass(frozen=True, slots=True)
class EventTimes:
    """The event times of a batch: ``ms`` per row, and which rows have one."""

    ms: npt.NDArray[np.int64]
    known: npt.NDArray[np.bool_]

    @property
    def missing(self) -> int:
        """Rows without."""
        return len(self.known) - int(np.count_nonzero(self.known))


def event_times(batch: pa.RecordBatch, column: str) -> EventTimes:
    """The event times in a column that ``check_time_column`` has let pass. Those beyond ``MAX_TIME_MS`` are cut."""
    array = batch.column(column)
    if isinstance(array, pa.DictionaryArray):
        array = plain_array(array, array.type.value_type)
    known = array.is_valid().to_numpy(zero_copy_only=False)
    dtype = array.type
    numbers = (array.view(pa.int64()) if pa.types.is_timestamp(dtype) else array.cast(pa.int64())).fill_null(0)
    ms = numbers.to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(dtype):
        if dtype.unit == "s":
            ms = np.clip(ms, -(MAX_TIME_MS // 1000), MAX_TIME_MS // 1000) * 1000
        elif dtype.unit in _PER_MS:
            ms = ms // _PER_MS[dtype.unit]
    return EventTimes(np.clip(ms, -MAX_TIME_MS, MAX_TIME_MS), known)


class TimeMetrics:
    """The metrics of an operator that uses event time: ``late_rows``, rows that came too late; ``max_late_ms``, by how
    much the latest of them was before the watermark; ``rows_without_time``, rows whose time is null.
    """

    def __init__(self, ctx: OperatorContext) -> None:
        self._metrics = ctx.metrics
        for metric in (LATE_ROWS, MAX_LATE_MS, WITHOUT_TIME):
            self._metrics.setdefault(metric, 0)

    def in_time(self, times: EventTimes, watermark_ms: int | None) -> npt.NDArray[np.bool_]:
        """Which rows have a time that is not before the watermark; counts the others."""
        return times.known & ~self.late(times, times.ms + 1, watermark_ms, watermark_ms)

    def late(
        self, times: EventTimes, ends_ms: npt.NDArray[np.int64], over_ms: int | None, watermark_ms: int | None
    ) -> npt.NDArray[np.bool_]:
        """Which rows come too late; counts them, and those without a time, which are not late.

        ``ends_ms``: when what each row belongs to ends; it is over if that is at ``over_ms`` or before.
        """
        self._metrics[WITHOUT_TIME] += times.missing
        if over_ms is None or watermark_ms is None:
            return np.zeros(len(ends_ms), np.bool_)
        late = times.known & (ends_ms <= over_ms)
        if late.any():
            self._metrics[LATE_ROWS] += int(np.count_nonzero(late))
            self._metrics[MAX_LATE_MS] = max(self._metrics[MAX_LATE_MS], watermark_ms - int(times.ms[late].min()))
        return late


@dataclass(frozen=True)
class WithWatermark(Operator):
    """Passes its rows on, and makes watermarks: the largest event time in ``column`` so far, less ``delay_ms``, by
    which rows may be out of order. Rows before the watermark are late: they pass, and are counted.

    Watermarks are multiples of ``every_ms``, so that those of several subtasks are the same numbers, and an operator
    that follows the least of them moves once for all.

    ``idle_after_ms``: see ``WatermarkMaker``.
    """

    name: str
    column: str
    delay_ms: int
    every_ms: int = 1
    idle_after_ms: int | None = None
    makes_watermarks = True

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        check_time_column(self.name, schema, self.column)
        return schema

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        return StateDescription(progress=True)

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _WithWatermarkInstance(self, ctx)


class _WithWatermarkInstance(WatermarkMaker):
    def __init__(self, descriptor: WithWatermark, ctx: OperatorContext) -> None:
        self._column = descriptor.column
        self._delay_ms = descriptor.delay_ms
        self._every_ms = descriptor.every_ms
        self.idle_after_ms = descriptor.idle_after_ms
        self._metrics = TimeMetrics(ctx)
        self._latest_ms: int | None = None

    @property
    @override
    def watermark_ms(self) -> int | None:
        if self._latest_ms is None:
            return None
        return (self._latest_ms - self._delay_ms) // self._every_ms * self._every_ms

    @override
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        if not batch.num_rows:
            return ()
        times = event_times(batch, self._column)
        self._metrics.in_time(times, self.watermark_ms)
        ms = times.ms[times.known] if times.missing else times.ms
        if len(ms):
            latest = int(ms.max())
            self._latest_ms = latest if self._latest_ms is None else max(self._latest_ms, latest)
        return (batch,)

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        return {"latest_ms": self._latest_ms, "idle": self.is_idle}

    @override
    def restore(self, state: JsonValue) -> None:
        assert isinstance(state, dict)
        self._latest_ms = state["latest_ms"]
        self.is_idle = state.get("idle", False)

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        """The least of those that still read: none of the rows that they have left is late by it."""
        reading = [part.state["latest_ms"] for part in parts if not part.ended]
        known = [part.state["latest_ms"] for part in parts if part.state["latest_ms"] is not None]
        if reading:
            self._latest_ms = None if None in reading else min(reading)
        else:
            self._latest_ms = max(known, default=None)
