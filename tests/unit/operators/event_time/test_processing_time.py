"""Processing time: the time of the step in a column, which never goes back."""

from __future__ import annotations

import json
from unittest import mock

import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.operator import Inherited, WatermarkMaker
from flinkplus.operators.event_time.processing_time import WithProcessingTime
from tests.unit.operators.operator_fakes import context

SCHEMA = pa.schema([("k", pa.string())])
CLOCK = WithProcessingTime("clock", "at", 1_000)


def mark_of(clock: WatermarkMaker) -> int | None:
    return clock.watermark_ms


def test_times_and_watermarks_never_go_back() -> None:
    ctx, now = context(CLOCK, SCHEMA), [5_000]
    ctx.now_ms = lambda: now[0]
    clock = CLOCK.create(ctx)
    assert isinstance(clock, WatermarkMaker)
    assert mark_of(clock) is None
    batch = pa.RecordBatch.from_pylist([{"k": "a"}, {"k": "b"}], SCHEMA)

    def at(time_ms: int) -> list[int]:
        now[0] = time_ms
        (out,) = clock.process(batch)
        assert out.schema == CLOCK.output_schema(SCHEMA)
        return [value // 1000 for value in out.column("at").cast(pa.int64()).to_pylist()]

    assert at(5_000) == [5_000] * 2 and clock.watermark_ms == 5_000
    assert at(4_000) == [5_000] * 2, "the clock has jumped back"
    now[0] = 9_000
    assert not clock.becomes_idle() and not clock.is_idle and clock.watermark_ms == 9_000
    assert at(8_999) == [9_000] * 2
    saved = json.loads(json.dumps(clock.snapshot(1)))
    clock = CLOCK.create(ctx)
    clock.restore(saved)
    assert at(1_000) == [9_000] * 2
    clock = CLOCK.create(ctx)
    left = [Inherited({"latest_ms": ms}, None, False, mock.Mock()) for ms in (None, 7_000, 3_000)]
    clock.inherit(left)
    assert at(1_000) == [7_000] * 2
    assert list(clock.process(batch.slice(0, 0))) == []


def test_a_column_of_that_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a column 'k' already"):
        WithProcessingTime("clock", "k", 1).output_schema(SCHEMA)
