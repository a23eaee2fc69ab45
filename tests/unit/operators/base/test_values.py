"""Times, maps and structs as functions see and give them: as PySpark's own conversion has them, in every local zone."""

from __future__ import annotations

import datetime as dt
import re
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import Row, TimestampNTZType, TimestampType

from flinkplus.errors import UserFunctionError
from flinkplus.operators.base.row import RowConverter
from flinkplus.operators.base.values import check_zones, shown, taker
from flinkplus.operators.keyed.functions.context import milliseconds
from flinkplus.operators.rows.rows import Map, MapBatches
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
    assert milliseconds(moment) == micros // 1000
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
    assert milliseconds(seen + dt.timedelta(minutes=90)) == milliseconds(before) + 90 * 60_000


def test_the_hour_that_comes_twice_is_told_by_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        first, second = (milliseconds(dt.datetime(2024, 11, 3, 1, 30, fold=fold)) for fold in (0, 1))
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
        (pa.struct([("n", pa.int64())]), (), "0 values for a struct with the fields"),
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


STRUCT = pa.struct([("a", pa.int32())])


@pytest.mark.parametrize(
    ("dtype", "value", "key"),
    [
        (pa.map_(STRUCT, pa.int32()), [({"a": 1}, 2)], Row(a=1)),
        (pa.map_(pa.list_(pa.int32()), pa.int32()), [([1, 2], 2)], (1, 2)),
        (
            pa.map_(pa.struct([("in", pa.list_(STRUCT)), ("at", INSTANT)]), pa.int32()),
            [({"in": [{"a": 1}, None], "at": EPOCH}, 2)],
            Row(**{"in": (Row(a=1), None), "at": EPOCH}),
        ),
        (pa.map_(pa.map_(pa.string(), STRUCT), pa.int32()), [([("x", {"a": 1})], 2)], (("x", Row(a=1)),)),
    ],
)
def test_a_maps_key_that_is_a_struct_or_a_list_can_be_looked_up(dtype: pa.DataType, value: Any, key: Any) -> None:
    array = pa.array([value, None], dtype)
    seen, nothing = shown(array)
    assert seen[key] == 2 and nothing is None
    assert converted(dtype, seen).equals(array[:1])


class PandasTimestamp(dt.datetime):
    """What a ``pandas.Timestamp`` without a zone refuses, and how it becomes a plain datetime."""

    def astimezone(self, tz: dt.tzinfo | None = None) -> Any:
        raise TypeError("Cannot convert tz-naive Timestamp, use tz_localize to localize")

    def to_pydatetime(self, warn: bool = True) -> dt.datetime:
        assert not warn
        return dt.datetime(self.year, self.month, self.day, self.hour)


class NotATime(dt.datetime):
    """As pandas' ``NaT``: a datetime that is not equal to itself."""

    def __ne__(self, other: object) -> bool:
        return True


def test_timestamps_of_pandas_mean_what_datetimes_mean(zone: str) -> None:
    assert converted(INSTANT, PandasTimestamp(2024, 3, 10, 12)).equals(converted(INSTANT, MOMENTS[2]))
    assert converted(INSTANT, NotATime(2024, 3, 10)).to_pylist() == [None]


NOT_NULL = pa.struct([pa.field("a", pa.int32(), nullable=False), ("b", pa.string())])


@pytest.mark.parametrize(
    ("dtype", "value", "field"),
    [
        (NOT_NULL, {"a": None}, "x.a"),
        (NOT_NULL, {}, "x.a"),
        (pa.list_(NOT_NULL), [None, (None, "b")], "x.item.a"),
        (pa.list_(pa.field("element", pa.int32(), nullable=False)), [1, None], "x.element"),
        (pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False)), {"k": None}, "x.value"),
        (pa.map_(pa.string(), NOT_NULL), {"k": {"b": "b"}}, "x.value.a"),
        (pa.struct([("in", NOT_NULL)]), ({"b": "b"},), "x.in.a"),
    ],
)
def test_a_null_in_a_field_that_is_not_null_is_said(dtype: pa.DataType, value: Any, field: str) -> None:
    with pytest.raises(UserFunctionError, match=f"column 'x'.*null in the field '{field}', which is declared NOT NULL"):
        converted(dtype, value)
    assert converted(dtype, None).null_count == 1, "nothing is within a null"


WITH_TIME = pa.struct([("a", pa.int32()), ("at", INSTANT)])


@pytest.mark.parametrize("dtype", [WITH_TIME, pa.struct([("a", pa.int32()), ("at", pa.string())])])
def test_a_struct_loses_nothing_silently(dtype: pa.DataType) -> None:
    at = EPOCH if dtype is WITH_TIME else "then"
    assert converted(dtype, {"a": 1}).to_pylist() == [{"a": 1, "at": None}]
    for value, message in (
        ({"A": 1, "at": at}, r"fields \['A'\] are not in the struct, which has \['a', 'at'\]"),
        ((1, at, 3), r"3 values for a struct with the fields \['a', 'at'\]"),
        ((1,), r"1 values for a struct with the fields \['a', 'at'\]"),
    ):
        with pytest.raises(UserFunctionError, match=message):
            converted(dtype, value)


@pytest.mark.parametrize(
    ("nest", "name"),
    [
        (lambda at: pa.struct([("at", at)]), "t.at"),
        (lambda at: pa.list_(pa.struct([("at", at)])), "t.element.at"),
        (lambda at: pa.map_(pa.string(), at), "t.value"),
    ],
)
def test_batches_say_which_time_they_mean_within_structs(nest: Any, name: str) -> None:
    given = pa.schema([("t", nest(PLAIN))]).empty_table()
    with pytest.raises(TypeError, match=f"column '{name}' is .*assume_timezone"):
        check_zones(given, pa.schema([("t", nest(INSTANT))]))
    check_zones(given, given.schema)


@pytest.mark.parametrize("dtype", [INSTANT, pa.list_(PLAIN), pa.map_(pa.string(), pa.date32())])
def test_a_time_that_python_cannot_show_names_its_row_and_column(dtype: pa.DataType) -> None:
    raw = {INSTANT: 253402300800000000, pa.list_(PLAIN): [253402300800000000]}.get(dtype, {"k": 2932897})
    value = list(raw.items()) if isinstance(raw, dict) else raw
    batch = pa.record_batch({"n": [1, 2], "t": pa.array([None, value], dtype)})
    operator = Map("map", lambda row: row.n, "n long")
    with pytest.raises(UserFunctionError, match=r"column 't' of type .*cannot show.*; input row: n=2, t=.*10000-01-01"):
        run(operator, [batch], batch.schema)


def test_the_start_of_a_day_as_the_documentation_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[4] / "docs" / "event-time.md").read_text()
    (example,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "start_of_day" in code)
    found: dict[str, Any] = {}
    exec(textwrap.dedent(example), found)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")  # whose clock went from 2 to 3 on that day
        time.tzset()
        (seen,) = shown(pa.array([dt.datetime(2024, 3, 31, 12, tzinfo=UTC)], INSTANT))
        by_pyspark = TimestampType().toInternal(dt.datetime(2024, 3, 31))
        start = converted(INSTANT, found["start_of_day"](seen))
        with_zone = converted(INSTANT, seen.replace(hour=0))
    time.tzset()
    assert start.view(pa.int64()).to_pylist() == [by_pyspark]
    assert start.to_pylist() == [dt.datetime(2024, 3, 30, 23, tzinfo=UTC)]
    assert with_zone.to_pylist() == [dt.datetime(2024, 3, 30, 22, tzinfo=UTC)], "the page warns of this"
