"""Times, maps and structs as functions see and give them: as PySpark's own conversion has them, in every local zone."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import TimestampNTZType, TimestampType

from flinkplus.errors import UserFunctionError
from flinkplus.operators.keyed_rows import _milliseconds
from flinkplus.operators.row import RowConverter
from flinkplus.operators.rows import MapBatches
from flinkplus.operators.values import shown, taker
from tests.unit.operators.operator_fakes import run

UTC = dt.timezone.utc
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = dt.timedelta(microseconds=1)
INSTANT, PLAIN = pa.timestamp("us", "UTC"), pa.timestamp("us")
MOMENTS = [
    dt.datetime(1905, 6, 1, 12, 30),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    dt.datetime(2024, 3, 10, 12),
    dt.datetime(2024, 7, 1, 0, 0, 0, 1),
    dt.datetime(2261, 1, 1),
]


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/New_York", "Europe/Berlin"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The local time zone of this process."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def converted(dtype: pa.DataType, value: Any) -> pa.Array:
    schema = pa.schema([("x", dtype)])
    return RowConverter("op", "op[0]", schema).batch([(value,)], lambda at: at).column(0)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_datetime_without_a_zone_means_what_it_means_in_pyspark(zone: str, moment: dt.datetime) -> None:
    micros = TimestampType().toInternal(moment)
    assert converted(INSTANT, moment).view(pa.int64()).to_pylist() == [micros]
    assert converted(INSTANT, np.datetime64(moment)).view(pa.int64()).to_pylist() == [micros]
    assert _milliseconds(moment) == micros // 1000
    (seen,) = shown(pa.array([micros], pa.int64()).view(INSTANT))
    assert seen.replace(tzinfo=None) == TimestampType().fromInternal(micros)
    assert (seen - EPOCH) // MICROSECOND == micros


def test_datetimes_with_a_zone_and_columns_without(zone: str) -> None:
    aware = dt.datetime(2024, 3, 10, 12, tzinfo=dt.timezone(dt.timedelta(hours=5)))
    assert converted(INSTANT, aware).to_pylist() == [aware]
    assert converted(PLAIN, aware).view(pa.int64()).to_pylist() == [TimestampNTZType().toInternal(aware)]
    assert converted(PLAIN, MOMENTS[2]).to_pylist() == shown(pa.array([MOMENTS[2]], PLAIN)) == [MOMENTS[2]]


def test_adding_to_a_time_is_exact_over_a_change_of_the_clock(zone: str) -> None:
    before = dt.datetime(2024, 3, 10, 6, 45, tzinfo=UTC)  # New York's clock goes from 2 to 3 at 7:00 UTC
    (seen,) = shown(pa.array([before], INSTANT))
    assert _milliseconds(seen + dt.timedelta(minutes=90)) == _milliseconds(before) + 90 * 60_000


def test_the_hour_that_comes_twice_is_told_by_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        first, second = (_milliseconds(dt.datetime(2024, 11, 3, 1, 30, fold=fold)) for fold in (0, 1))
    time.tzset()
    assert second - first == 3_600_000


NESTED = pa.struct(
    [
        ("times", pa.list_(INSTANT)),
        ("by_name", pa.map_(pa.string(), pa.struct([("at", INSTANT), ("plain", PLAIN)]))),
        ("n", pa.int32()),
    ]
)


def test_times_within_lists_maps_and_structs(zone: str) -> None:
    at = MOMENTS[2]
    expected = dt.datetime.fromtimestamp(TimestampType().toInternal(at) // 1_000_000, UTC)
    given = {"times": [at, None], "by_name": {"a": (at, at), "b": None}, "n": 1}
    array = converted(NESTED, given)
    assert array.to_pylist() == [
        {"times": [expected, None], "by_name": [("a", {"at": expected, "plain": at}), ("b", None)], "n": 1}
    ]
    (seen,) = shown(array)
    assert seen["by_name"]["a"]["at"].replace(tzinfo=None) == at and seen["times"][1] is None
    assert converted(NESTED, seen).equals(array)
    assert shown(pa.array([None], NESTED)) == [None]
    assert taker(pa.list_(pa.int64())) is None


def test_years_at_the_ends_of_time_pass(zone: str) -> None:
    ends = pa.array([dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)], INSTANT)
    take = taker(INSTANT)
    assert take is not None
    assert pa.array([take(value) for value in shown(ends)], INSTANT).equals(ends)
    naive = dt.datetime(9999, 12, 31, 23) if zone == "America/New_York" else dt.datetime(1, 1, 1)
    if zone != "UTC":
        with pytest.raises(UserFunctionError, match=r"column 'x'.*has no equivalent in UTC.*give it a zone"):
            converted(INSTANT, naive)


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        (pa.struct([("n", pa.int64())]), {"n": 1.5}, "float is not int64"),
        (pa.struct([("n", pa.int64())]), (), "field 'n' at position 0"),
        (pa.map_(pa.string(), pa.int64()), {"a": "b"}, "str is not int64"),
        (pa.map_(pa.string(), pa.int64()), {1: 1}, "int is not string"),
        (pa.map_(pa.string(), pa.int64()), 5, "int is not map"),
        (INSTANT, dt.date(2024, 1, 1), "date is not timestamp"),
    ],
)
def test_what_a_column_cannot_hold_is_said(dtype: pa.DataType, value: Any, message: str) -> None:
    with pytest.raises(UserFunctionError, match=message):
        converted(dtype, value)


@pytest.mark.parametrize(
    ("declared", "given", "message"),
    [("t timestamp", PLAIN, "assume_timezone"), ("t timestamp_ntz", INSTANT, "local_timestamp")],
)
def test_batches_say_which_time_they_mean(declared: str, given: pa.DataType, message: str) -> None:
    batch = pa.record_batch({"t": pa.array([MOMENTS[2]], given)})
    operator = MapBatches("batches", lambda batch: batch, declared)
    with pytest.raises(UserFunctionError, match=f"column 't'.*{message}"):
        run(operator, [batch], batch.schema)
