"""Event times, and the watermarks made of them."""

from __future__ import annotations

import datetime

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.durations import MAX_TIME_MS
from flinkplus.operators.base.operator import WatermarkMaker
from flinkplus.operators.event_time.event_time import WithWatermark, event_times
from tests.unit.operators.operator_fakes import context

MILLISECONDS = pa.schema([("ts", pa.int64())])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Kolkata"])
def test_timestamps_of_every_unit(unit: str, zone: str | None) -> None:
    seconds = [-1, 0, 1_700_000_000, None]
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    dtype = pa.timestamp(unit, zone)
    numbers = [None if s is None else s * per_second for s in seconds]
    batch = pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64()).cast(dtype)], names=["ts"])
    times = event_times(batch.slice(1), "ts")
    assert times.ms[times.known].tolist() == [0, 1_700_000_000_000]
    assert times.missing == 1
    assert event_times(batch, "ts").ms[0] == -1_000


def test_finer_ones_are_rounded_down() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([-1, 999, 1000, 1999], pa.timestamp("us"))], names=["ts"])
    assert event_times(batch, "ts").ms.tolist() == [-1, 0, 1, 1]


def test_far_times_are_cut() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([2**63 - 1, -(2**63)], pa.int64())], names=["ts"])
    assert event_times(batch, "ts").ms.tolist() == [MAX_TIME_MS, -MAX_TIME_MS]
    batch = pa.RecordBatch.from_arrays([pa.array([2**63 - 1, -(2**63)], pa.timestamp("s"))], names=["ts"])
    times = event_times(batch, "ts").ms
    assert times[0] > MAX_TIME_MS - 2_000 and times[1] < -MAX_TIME_MS + 2_000


@pytest.mark.parametrize("dtype", [pa.string(), pa.float64(), pa.date32(), pa.uint64()])
def test_columns_that_are_no_time(dtype: pa.DataType) -> None:
    with pytest.raises(ConfigurationError, match="operator 'marks': column 'ts' is"):
        WithWatermark("marks", "ts", 0).output_schema(pa.schema([("ts", dtype)]))
    with pytest.raises(ConfigurationError, match="operator 'marks': no column 'when'"):
        WithWatermark("marks", "when", 0).output_schema(pa.schema([("ts", dtype)]))


@given(
    st.lists(st.lists(st.one_of(st.none(), st.integers(-50, 50)), max_size=4)), st.integers(0, 20), st.integers(1, 30)
)
def test_the_latest_row_less_the_delay(batches: list[list[int | None]], delay_ms: int, every_ms: int) -> None:
    operator, restart = WithWatermark("marks", "ts", delay_ms, every_ms), every_ms % 9
    instance = operator.create(context(operator, MILLISECONDS))
    latest: int | None = None
    for number, times in enumerate(batches):
        if number == restart:
            saved = instance.snapshot(1)
            instance = operator.create(context(operator, MILLISECONDS))
            instance.restore(saved)
        batch = pa.RecordBatch.from_arrays([pa.array(times, pa.int64())], schema=MILLISECONDS)
        assert list(instance.process(batch)) == ([batch] if times else [])
        latest = max([t for t in [*times, latest] if t is not None], default=None)
        assert isinstance(instance, WatermarkMaker)
        assert instance.watermark_ms == (
            None if latest is None else (latest - delay_ms) - (latest - delay_ms) % every_ms
        )


def test_rows_without_a_time_are_counted() -> None:
    operator = WithWatermark("marks", "ts", 0)
    ctx = context(operator, pa.schema([("ts", pa.timestamp("us", "UTC"))]))
    moment = datetime.datetime(2024, 5, 1, tzinfo=datetime.timezone.utc)
    batch = pa.RecordBatch.from_arrays([pa.array([None, moment, None], ctx.input_schema.field(0).type)], names=["ts"])
    list(operator.create(ctx).process(batch))
    assert ctx.metrics == {"late_rows": 0, "max_late_ms": 0, "rows_without_time": 2}
